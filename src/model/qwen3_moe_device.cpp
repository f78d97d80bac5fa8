#include "model/qwen3_moe_device.h"

#include <fmt/format.h>

#include <utility>

#include "kernels/quantize/op.h"
#include "model/matrix_uploader.h"
#include "model/qwen3_moe_names.h"

namespace fastfd::model::qwen3_moe {
namespace {

DeviceAttentionLayer upload_layer(MatrixUploader& matrices, DeviceUploader& uploader,
                                  const ModelSpec& spec, std::uint32_t layer) {
  const std::uint64_t hidden = spec.hidden_dim;
  const std::uint64_t q = std::uint64_t{spec.num_q_heads} * spec.head_dim;
  const std::uint64_t kv = std::uint64_t{spec.num_kv_heads} * spec.head_dim;
  DeviceAttentionLayer weights;
  weights.input_norm = matrices.vector(layer_name(layer, "input_layernorm.weight"), hidden);
  bf16* qkv = uploader.reserve<bf16>((q + 2 * kv) * hidden);
  weights.qkv = qkv;
  qkv = matrices.into(qkv, layer_name(layer, "self_attn.q_proj.weight"), q, hidden);
  qkv = matrices.into(qkv, layer_name(layer, "self_attn.k_proj.weight"), kv, hidden);
  matrices.into(qkv, layer_name(layer, "self_attn.v_proj.weight"), kv, hidden);
  weights.q_norm = matrices.vector(layer_name(layer, "self_attn.q_norm.weight"), spec.head_dim);
  weights.k_norm = matrices.vector(layer_name(layer, "self_attn.k_norm.weight"), spec.head_dim);
  weights.out = matrices.matrix(layer_name(layer, "self_attn.o_proj.weight"), hidden, q);
  weights.post_norm = matrices.vector(layer_name(layer, "post_attention_layernorm.weight"), hidden);
  weights.router = matrices.matrix(layer_name(layer, "mlp.gate.weight"), spec.num_experts, hidden);
  return weights;
}

/// An expert's gate rows, then its up rows, to `gate_up`, and the third matrix to `down`.
void put_expert(MatrixUploader& matrices, const ModelSpec& spec, std::uint32_t layer,
                std::uint32_t expert, bf16* gate_up, bf16* down) {
  const std::uint64_t hidden = spec.hidden_dim;
  const std::uint64_t intermediate = spec.expert_intermediate_dim;
  bf16* up = matrices.into(gate_up, expert_name(layer, expert, "gate_proj"), intermediate, hidden);
  matrices.into(up, expert_name(layer, expert, "up_proj"), intermediate, hidden);
  matrices.into(down, expert_name(layer, expert, "down_proj"), hidden, intermediate);
}

DeviceFfnLayer upload_experts(MatrixUploader& matrices, DeviceUploader& uploader,
                              const ModelSpec& spec, const std::vector<std::uint32_t>& experts,
                              std::uint32_t layer) {
  const std::size_t down_count = std::size_t{spec.hidden_dim} * spec.expert_intermediate_dim;
  bf16* gate_up = uploader.reserve<bf16>(experts.size() * 2 * down_count);
  bf16* down = uploader.reserve<bf16>(experts.size() * down_count);
  const DeviceFfnLayer weights{.dtype = DType::kBFloat16, .gate_up = gate_up, .down = down};
  for (const std::uint32_t expert : experts) {
    put_expert(matrices, spec, layer, expert, gate_up, down);
    gate_up += 2 * down_count;
    down += down_count;
  }
  return weights;
}

/// `staging`: GPU memory for one matrix in bf16, all that is ever there of those not yet FP8.
DeviceFfnLayer upload_fp8_experts(MatrixUploader& matrices, DeviceUploader& uploader,
                                  const ModelSpec& spec, const std::vector<std::uint32_t>& experts,
                                  std::uint32_t layer, bf16* staging) {
  const std::uint64_t hidden = spec.hidden_dim;
  const std::uint64_t intermediate = spec.expert_intermediate_dim;
  const std::size_t count = hidden * intermediate;  // of each of an expert's three matrices
  const std::size_t scale_count = count / (kernels::kQuantizeBlock * kernels::kQuantizeBlock);
  auto* gate_up = uploader.reserve<std::uint8_t>(experts.size() * 2 * count);
  auto* down = uploader.reserve<std::uint8_t>(experts.size() * count);
  auto* gate_up_scales = uploader.reserve<float>(experts.size() * 2 * scale_count);
  auto* down_scales = uploader.reserve<float>(experts.size() * scale_count);
  const DeviceFfnLayer weights{.dtype = DType::kFloat8E4M3,
                               .gate_up = gate_up,
                               .down = down,
                               .gate_up_scales = gate_up_scales,
                               .down_scales = down_scales};
  for (const std::uint32_t expert : experts) {
    for (const char* projection : {"gate_proj", "up_proj"}) {
      matrices.into_fp8(expert_name(layer, expert, projection), intermediate, hidden, gate_up,
                        gate_up_scales, staging);
      gate_up += count;
      gate_up_scales += scale_count;
    }
    matrices.into_fp8(expert_name(layer, expert, "down_proj"), hidden, intermediate, down,
                      down_scales, staging);
    down += count;
    down_scales += scale_count;
  }
  return weights;
}

/// Gate and up rows must not share a block.
void require_whole_blocks(const ModelSpec& spec) {
  for (const auto& [name, dim] :
       {std::pair{"hidden_size", spec.hidden_dim},
        std::pair{"moe_intermediate_size", spec.expert_intermediate_dim}}) {
    if (dim % kernels::kQuantizeBlock != 0) {
      throw ModelError(
          fmt::format("config.json: {}: {} is no multiple of {}, so that the experts can't be "
                      "FP8; use model.quantization: none",
                      name, dim, kernels::kQuantizeBlock));
    }
  }
}

}  // namespace

DeviceAttentionWeights upload_attention(const TensorSource& source, const ModelSpec& spec,
                                        const device::CudaDevice& device, LoadReport* report) {
  DeviceUploader uploader(device);
  MatrixUploader matrices(source, report, uploader);
  DeviceAttentionWeights weights;
  weights.embedding =
      matrices.matrix("model.embed_tokens.weight", spec.vocab_size, spec.hidden_dim);
  weights.lm_head = spec.tied_embeddings
                        ? weights.embedding
                        : matrices.matrix("lm_head.weight", spec.vocab_size, spec.hidden_dim);
  weights.final_norm = matrices.vector("model.norm.weight", spec.hidden_dim);
  for (std::uint32_t layer = 0; layer < spec.num_layers; ++layer) {
    weights.layers.push_back(upload_layer(matrices, uploader, spec, layer));
  }
  weights.memory = uploader.take();
  return weights;
}

DeviceFfnWeights upload_ffn(const TensorSource& source, const ModelSpec& spec,
                            const std::vector<std::uint32_t>& experts,
                            const device::CudaDevice& device, LoadReport* report) {
  DeviceUploader uploader(device);
  MatrixUploader matrices(source, report, uploader);
  DeviceFfnWeights weights;
  weights.num_experts = static_cast<std::uint32_t>(experts.size());
  weights.dtype = spec.expert_dtype;
  if (weights.dtype == DType::kBFloat16) {
    for (std::uint32_t layer = 0; layer < spec.num_layers; ++layer) {
      weights.layers.push_back(upload_experts(matrices, uploader, spec, experts, layer));
    }
    weights.memory = uploader.take();
    return weights;
  }
  require_whole_blocks(spec);
  const device::DeviceBuffer staging(
      device, std::size_t{spec.expert_intermediate_dim} * spec.hidden_dim * sizeof(bf16));
  for (std::uint32_t layer = 0; layer < spec.num_layers; ++layer) {
    weights.layers.push_back(
        upload_fp8_experts(matrices, uploader, spec, experts, layer, staging.as<bf16>()));
  }
  weights.memory = uploader.take();  // and nothing reads the staging area any more
  return weights;
}

}  // namespace fastfd::model::qwen3_moe
