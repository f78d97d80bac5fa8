
#include <fmt/format.h>

#include <utility>

#include "kernels/quantize/op.h"
#include "model/loader.h"
#include "model/matrix_uploader.h"
#include "model/tensor_map.h"

namespace fastfd::model {
namespace {

DeviceAttentionLayer upload_layer(MatrixUploader& matrices, DeviceUploader& uploader,
                                  const ModelSpec& spec, const TensorMap& tensors,
                                  std::uint32_t layer) {
  const FullAttentionTensors attention = tensors.full_attention(layer);
  DeviceAttentionLayer weights;
  weights.input_norm = matrices.vector(tensors.input_norm(layer));
  bf16* qkv =
      uploader.reserve<bf16>(std::size_t{spec.q_dim() + 2 * spec.kv_dim()} * spec.hidden_dim);
  weights.qkv = qkv;
  qkv = matrices.into(qkv, attention.q);
  qkv = matrices.into(qkv, attention.k);
  matrices.into(qkv, attention.v);
  weights.q_norm = matrices.vector(attention.q_norm);
  weights.k_norm = matrices.vector(attention.k_norm);
  weights.out = matrices.matrix(attention.out);
  weights.post_norm = matrices.vector(tensors.post_norm(layer));
  weights.router = matrices.matrix(tensors.router(layer));
  return weights;
}

/// An expert's gate rows, then its up rows, to `gate_up`, and the third matrix to `down`.
void put_expert(MatrixUploader& matrices, const FfnTensors& expert, bf16* gate_up, bf16* down) {
  bf16* up = matrices.into(gate_up, expert.gate);
  matrices.into(up, expert.up);
  matrices.into(down, expert.down);
}

DeviceFfnLayer upload_experts(MatrixUploader& matrices, DeviceUploader& uploader,
                              const ModelSpec& spec, const TensorMap& tensors,
                              const std::vector<std::uint32_t>& experts, std::uint32_t layer) {
  const std::size_t down_count = std::size_t{spec.hidden_dim} * spec.expert_intermediate_dim;
  bf16* gate_up = uploader.reserve<bf16>(experts.size() * 2 * down_count);
  bf16* down = uploader.reserve<bf16>(experts.size() * down_count);
  const DeviceFfnLayer weights{.dtype = DType::kBFloat16, .gate_up = gate_up, .down = down};
  for (const std::uint32_t expert : experts) {
    put_expert(matrices, tensors.expert(layer, expert), gate_up, down);
    gate_up += 2 * down_count;
    down += down_count;
  }
  return weights;
}

/// `staging`: GPU memory for one matrix in bf16, all that is ever there of those not yet FP8.
DeviceFfnLayer upload_fp8_experts(MatrixUploader& matrices, DeviceUploader& uploader,
                                  const ModelSpec& spec, const TensorMap& tensors,
                                  const std::vector<std::uint32_t>& experts, std::uint32_t layer,
                                  bf16* staging) {
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
    const FfnTensors ffn = tensors.expert(layer, expert);
    for (const MatrixRef* matrix : {&ffn.gate, &ffn.up}) {
      matrices.into_fp8(*matrix, gate_up, gate_up_scales, staging);
      gate_up += count;
      gate_up_scales += scale_count;
    }
    matrices.into_fp8(ffn.down, down, down_scales, staging);
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
                                        const TensorMap& tensors, const device::CudaDevice& device,
                                        LoadReport* report) {
  DeviceUploader uploader(device);
  MatrixUploader matrices(source, report, uploader);
  DeviceAttentionWeights weights;
  weights.embedding = matrices.matrix(tensors.embedding());
  weights.lm_head = spec.tied_embeddings ? weights.embedding : matrices.matrix(tensors.lm_head());
  weights.final_norm = matrices.vector(tensors.final_norm());
  for (std::uint32_t layer = 0; layer < spec.num_layers; ++layer) {
    weights.layers.push_back(upload_layer(matrices, uploader, spec, tensors, layer));
  }
  weights.memory = uploader.take();
  return weights;
}

DeviceFfnWeights upload_ffn(const TensorSource& source, const ModelSpec& spec,
                            const TensorMap& tensors, const FfnShare& share,
                            const device::CudaDevice& device, LoadReport* report) {
  DeviceUploader uploader(device);
  MatrixUploader matrices(source, report, uploader);
  DeviceFfnWeights weights;
  weights.num_experts = static_cast<std::uint32_t>(share.experts.size());
  weights.dtype = spec.expert_dtype;
  if (weights.dtype == DType::kBFloat16) {
    for (std::uint32_t layer = 0; layer < spec.num_layers; ++layer) {
      weights.layers.push_back(
          upload_experts(matrices, uploader, spec, tensors, share.experts, layer));
    }
    weights.memory = uploader.take();
    return weights;
  }
  require_whole_blocks(spec);
  const device::DeviceBuffer staging(
      device, std::size_t{spec.expert_intermediate_dim} * spec.hidden_dim * sizeof(bf16));
  for (std::uint32_t layer = 0; layer < spec.num_layers; ++layer) {
    weights.layers.push_back(upload_fp8_experts(matrices, uploader, spec, tensors, share.experts,
                                                layer, staging.as<bf16>()));
  }
  weights.memory = uploader.take();  // and nothing reads the staging area any more
  return weights;
}

}  // namespace fastfd::model
