#pragma once

#include <cstdint>

#include "attention_server/gpu_attention_rows.h"
#include "attention_server/gpu_setup.h"
#include "attention_server/sequence_table.h"
#include "fastfd/model/device_weights.h"
#include "kernels/attention/paged_kv.h"

namespace fastfd::attention_server {

/// Layers of grouped-query attention on a GPU, with the KV pages of all of them. Loop thread only.
class GpuFullAttention {
 public:
  /// `stream`: for what is copied once.
  GpuFullAttention(const AttentionServerOptions& options, const model::ModelSpec& spec,
                   const device::GpuPart& gpu, const device::DeviceStream& stream);

  /// GPU memory beside the pages.
  static std::uint64_t workspace_bytes(const AttentionServerOptions& options,
                                       const model::ModelSpec& spec);

  Status run(const GpuAttentionRows& rows, const model::DeviceFullAttention& weights) const;
  Status copy_page(device::CudaStream stream, const PageCopy& copy) const;

 private:
  kernels::cuda::PagedKv kv_of(const GpuAttentionRows& rows) const;
  Status write_kv(const GpuAttentionRows& rows, const model::DeviceFullAttention& weights) const;
  Status apply_gate(const GpuAttentionRows& rows, const model::DeviceFullAttention& weights) const;

  AttentionServerOptions options_;
  model::ModelSpec spec_;
  std::uint32_t num_sms_;
  std::uint32_t num_layers_;  // of this kind
  std::size_t pool_bytes_;    // keys of one layer
  device::DeviceBuffer kv_;   // [num_layers_][keys, values][pool_bytes_]
  GpuRopeTable rope_;
};

}  // namespace fastfd::attention_server
