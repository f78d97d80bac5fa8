#pragma once

#include <atomic>
#include <cstdint>

#include "attention_server/sequence_table.h"
#include "fastfd/device/cpu.h"

namespace fastfd::attention_server {

/// One lane's rows on their way through a layer: what an attention layer of any kind works on.
struct AttentionRows {
  std::uint32_t layer = 0;
  const LaneBatch* batch = nullptr;
  const float* normed = nullptr;  ///< [batch->num_rows, hidden_dim]
  float* residual = nullptr;      ///< [batch->num_rows, hidden_dim]: the layer's result is added
  const device::CpuStream* stream = nullptr;
  const std::atomic<bool>* abort = nullptr;
};

}  // namespace fastfd::attention_server
