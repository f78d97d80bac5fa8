#pragma once

#include <cstdint>

#include "attention_server/gpu_attention_rows.h"
#include "attention_server/gpu_setup.h"
#include "attention_server/sequence_table.h"
#include "fastfd/model/device_weights.h"
#include "kernels/latent_attention/op_cuda.h"

namespace fastfd::attention_server {

/// Layers of latent attention on a GPU, with the pages of all of them. Loop thread only.
class GpuLatentAttention {
 public:
  /// `stream`: for what is copied once.
  GpuLatentAttention(const AttentionServerOptions& options, const model::ModelSpec& spec,
                     const device::GpuPart& gpu, const device::DeviceStream& stream);

  /// GPU memory beside the pages.
  static std::uint64_t workspace_bytes(const AttentionServerOptions& options,
                                       const model::ModelSpec& spec);

  Status run(const GpuAttentionRows& rows, const model::DeviceLatentAttention& weights) const;
  Status copy_page(device::CudaStream stream, const PageCopy& copy) const;

 private:
  kernels::cuda::PagedLatents latents_of(const GpuAttentionRows& rows) const;
  Status project_queries(const GpuAttentionRows& rows,
                         const model::DeviceLatentAttention& weights) const;
  /// The new latent rows into the pages, and the queries that meet them.
  Status project_latents(const GpuAttentionRows& rows,
                         const model::DeviceLatentAttention& weights) const;
  Status project_values(const GpuAttentionRows& rows,
                        const model::DeviceLatentAttention& weights) const;

  AttentionServerOptions options_;
  model::ModelSpec spec_;
  model::LatentSpec latent_;
  std::uint32_t num_sms_;
  std::uint32_t num_layers_;    // of this kind
  std::size_t pool_bytes_;      // of one layer
  device::DeviceBuffer pages_;  // [num_layers_][pool_bytes_]
  GpuRopeTable rope_;
};

}  // namespace fastfd::attention_server
