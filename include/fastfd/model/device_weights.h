#pragma once

/// The tensors of one role in GPU memory, row-major as in checkpoints: what the kernels of
/// kernels/*/op_cuda.h read.

#include <cstddef>
#include <filesystem>
#include <vector>

#include "fastfd/core/dtype.h"
#include "fastfd/core/expert_placement.h"
#include "fastfd/device/cuda.h"
#include "fastfd/model/model.h"
#include "kernels/expert_ffn/op_cuda.h"

namespace fastfd::model {

// What a layer does not have is nullptr.

struct DeviceFullAttention {
  const bf16* qkv = nullptr;        ///< [(q + 2 kv heads) * head_dim, hidden_dim]: q, k, v
  const float* qkv_bias = nullptr;  ///< [(q + 2 kv heads) * head_dim]
  const bf16* gate = nullptr;       ///< [q heads * head_dim, hidden_dim]
  const float* q_norm = nullptr;    ///< as RopeKvWriteParams wants them
  const float* k_norm = nullptr;
  const bf16* out = nullptr;        ///< [hidden_dim, q heads * head_dim]
  const float* out_bias = nullptr;  ///< [hidden_dim]
};

/// kv_b_proj is cut by heads into what queries absorb and what turns sums of latents into values.
struct DeviceLatentAttention {
  const bf16* q_down = nullptr;  ///< [q_rank, hidden_dim]
  const float* q_norm = nullptr;
  const bf16* q = nullptr;   ///< [num_heads * (nope + rope), q_rank or hidden_dim]
  const bf16* kv = nullptr;  ///< [kv_rank + rope, hidden_dim]
  const float* kv_norm = nullptr;
  const bf16* keys = nullptr;    ///< [num_heads, kv_rank, nope]
  const bf16* values = nullptr;  ///< [num_heads, value_dim, kv_rank]
  const bf16* out = nullptr;     ///< [hidden_dim, num_heads * value_dim]
};

/// As kernels::cuda::GatedDeltaNetParams wants them.
struct DeviceGatedDeltaNet {
  const bf16* in = nullptr;  ///< [row_dim, hidden_dim]
  const float* conv = nullptr;
  const float* a_log = nullptr;
  const float* dt_bias = nullptr;
  const float* norm = nullptr;
  const bf16* out = nullptr;  ///< [hidden_dim, value_dim]
};

struct DeviceAttentionLayer {
  const float* input_norm = nullptr;       ///< [hidden_dim]
  DeviceFullAttention full;                ///< AttentionKind::kFull
  DeviceLatentAttention latent;            ///< AttentionKind::kLatent
  DeviceGatedDeltaNet gated_delta_net;     ///< AttentionKind::kGatedDeltaNet
  const float* post_norm = nullptr;        ///< [hidden_dim]
  const bf16* router = nullptr;            ///< [num_experts, hidden_dim]
  const float* correction_bias = nullptr;  ///< [num_experts]
  const bf16* shared_gate_up = nullptr;    ///< [2 * shared_intermediate_dim, hidden_dim]
  const bf16* shared_down = nullptr;       ///< [hidden_dim, shared_intermediate_dim]
  const bf16* shared_gate = nullptr;       ///< [hidden_dim]
};

struct DeviceAttentionWeights {
  const bf16* embedding = nullptr;  ///< [vocab_size, hidden_dim]
  std::vector<DeviceAttentionLayer> layers;
  const float* final_norm = nullptr;  ///< [hidden_dim]
  const bf16* lm_head = nullptr;      ///< [vocab_size, hidden_dim]; the embedding if tied
  std::vector<device::DeviceBuffer> memory;
  std::size_t num_bytes() const;
};

/// What an FFN server has to compute in a layer.
struct DeviceFfnDims {
  std::uint32_t num_experts = 0;       ///< of this server; kDense: its slices
  std::uint32_t intermediate_dim = 0;  ///< of each, with zeros up to a multiple of 128
  std::uint32_t routes_per_token = 0;  ///< most that a token has here

  /// `placement`: of spec.num_placed_experts().
  static DeviceFfnDims of(const ModelSpec& spec, FfnKind kind, const ExpertPlacement& placement,
                          ServerRank ffn_rank);
};

/// The local experts of a layer, ascending global id, or the slices of a dense FFN.
struct DeviceFfnLayer {
  DeviceFfnDims dims;
  kernels::cuda::ExpertWeights weights;
};

struct DeviceFfnWeights {
  DType dtype = DType::kBFloat16;  ///< of all layers
  std::vector<DeviceFfnLayer> layers;
  std::vector<device::DeviceBuffer> memory;
  std::size_t num_bytes() const;
};

/// Map, convert, copy to the GPU, drop the file pages; or, as spec.load says, let the GPU make up
/// the weights and quantise the experts, one at a time. Throws ModelError, or DeviceError if the
/// GPU's memory does not suffice. The calling thread's current device is `device`.
DeviceAttentionWeights upload_attention_weights(const std::filesystem::path& model_dir,
                                                const ModelSpec& spec,
                                                const device::CudaDevice& device,
                                                LoadReport* report = nullptr);
DeviceFfnWeights upload_ffn_weights(const std::filesystem::path& model_dir, const ModelSpec& spec,
                                    const ExpertPlacement& placement, ServerRank ffn_rank,
                                    const device::CudaDevice& device, LoadReport* report = nullptr);

}  // namespace fastfd::model
