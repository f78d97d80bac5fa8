#pragma once

#include <cstdint>
#include <vector>

#include "fastfd/core/status.h"
#include "fastfd/device/cpu.h"

namespace fastfd::kernels {

/// cos and sin of position * theta^(-2i/rotary_dim), computed as transformers does (float inverse
/// frequencies, float products).
struct RopeTable {
  std::int64_t max_positions = 0;
  std::int64_t rotary_dim = 0;
  std::vector<float> cos;  ///< [max_positions, rotary_dim / 2]
  std::vector<float> sin;  ///< [max_positions, rotary_dim / 2]
  static RopeTable make(std::int64_t max_positions, std::int64_t rotary_dim, double theta);
};

/// In place on the fused projection: per-head RMSNorm of q and k (if weights are given), then
/// rotation of the first rotary_dim elements in the half-split ("NeoX") form.
struct QkNormRopeParams {
  std::int64_t num_rows = 0;
  std::int64_t num_q_heads = 0;
  std::int64_t num_kv_heads = 0;
  std::int64_t head_dim = 0;
  float* qkv = nullptr;                  ///< [num_rows, (num_q_heads + 2 num_kv_heads) * head_dim]
  const float* q_norm_weight = nullptr;  ///< [head_dim] or nullptr
  const float* k_norm_weight = nullptr;  ///< [head_dim] or nullptr
  const std::int32_t* positions = nullptr;  ///< [num_rows]
  const RopeTable* table = nullptr;
  float eps = 1e-6F;
};
Status launch_qk_norm_rope(const QkNormRopeParams& params, const device::CpuStream& stream);
void reference_qk_norm_rope(const QkNormRopeParams& params);

}  // namespace fastfd::kernels
