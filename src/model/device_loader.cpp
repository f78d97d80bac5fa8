
#include <fmt/format.h>

#include <algorithm>

#include "kernels/quantize/op.h"
#include "model/loader.h"
#include "model/matrix_uploader.h"
#include "model/tensor_map.h"

namespace fastfd::model {
namespace {

/// A shared expert's gate rows, then its up rows; its third matrix; its gate.
void upload_shared_expert(MatrixUploader& matrices, DeviceUploader& uploader, const ModelSpec& spec,
                          const TensorMap& tensors, std::uint32_t layer,
                          DeviceAttentionLayer& weights) {
  const FfnTensors ffn = tensors.shared_expert(layer);
  bf16* gate_up =
      uploader.reserve<bf16>(std::size_t{2} * spec.shared_intermediate_dim * spec.hidden_dim);
  weights.shared_gate_up = gate_up;
  matrices.into(matrices.into(gate_up, ffn.gate), ffn.up);
  weights.shared_down = matrices.matrix(ffn.down);
  if (const auto gate = tensors.shared_gate(layer)) {
    weights.shared_gate = matrices.matrix(*gate);
  }
}

bf16* put_all(MatrixUploader& matrices, bf16* to, const std::vector<MatrixRef>& parts) {
  for (const MatrixRef& part : parts) {
    to = matrices.into(to, part);
  }
  return to;
}

DeviceFullAttention upload_full_attention(MatrixUploader& matrices, DeviceUploader& uploader,
                                          const ModelSpec& spec,
                                          const FullAttentionTensors& tensors) {
  const std::size_t hidden = spec.hidden_dim;
  DeviceFullAttention weights;
  bf16* qkv = uploader.reserve<bf16>((spec.q_dim() + 2 * spec.kv_dim()) * hidden);
  weights.qkv = qkv;
  if (spec.has_output_gate) {
    bf16* gate = uploader.reserve<bf16>(spec.q_dim() * hidden);
    weights.gate = gate;
    qkv = put_all(matrices, qkv, tensors.q_heads);
    put_all(matrices, gate, tensors.gate_heads);
  } else {
    qkv = matrices.into(qkv, tensors.q);
  }
  put_all(matrices, qkv, {tensors.k, tensors.v});
  weights.qkv_bias = matrices.vectors({tensors.q_bias, tensors.k_bias, tensors.v_bias});
  weights.q_norm = matrices.vector(tensors.q_norm);
  weights.k_norm = matrices.vector(tensors.k_norm);
  weights.out = matrices.matrix(tensors.out);
  weights.out_bias = matrices.vector(tensors.out_bias);
  return weights;
}

DeviceLatentAttention upload_latent_attention(MatrixUploader& matrices, const ModelSpec& spec,
                                              const LatentAttentionTensors& tensors) {
  DeviceLatentAttention weights;
  if (tensors.q_down) {
    weights.q_down = matrices.matrix(*tensors.q_down);
  }
  weights.q_norm = matrices.vector(tensors.q_norm);
  weights.q = matrices.matrix(tensors.q);
  weights.kv = matrices.matrix(tensors.kv);
  weights.kv_norm = matrices.vector(tensors.kv_norm);
  const HeadWeights heads = matrices.heads(tensors.kv_up, spec.latent);
  weights.keys = heads.keys;
  weights.values = heads.values;
  weights.out = matrices.matrix(tensors.out);
  return weights;
}

DeviceGatedDeltaNet upload_gated_delta_net(MatrixUploader& matrices, DeviceUploader& uploader,
                                           const ModelSpec& spec,
                                           const GatedDeltaNetTensors& tensors) {
  const std::size_t hidden = spec.hidden_dim;
  DeviceGatedDeltaNet weights;
  bf16* in =
      uploader.reserve<bf16>(static_cast<std::size_t>(spec.gated_delta_net.row_dim()) * hidden);
  weights.in = in;
  for (const PlacedMatrix& placed : tensors.in) {
    matrices.into(in + placed.first_row * hidden, placed.matrix);
  }
  weights.conv = matrices.by_tap(tensors.conv);
  weights.a_log = matrices.vector(tensors.a_log);
  weights.dt_bias = matrices.vector(tensors.dt_bias);
  weights.norm = matrices.vector(tensors.norm);
  weights.out = matrices.matrix(tensors.out);
  return weights;
}

DeviceAttentionLayer upload_layer(MatrixUploader& matrices, DeviceUploader& uploader,
                                  const ModelSpec& spec, const TensorMap& tensors,
                                  std::uint32_t layer) {
  DeviceAttentionLayer weights;
  weights.input_norm = matrices.vector(tensors.input_norm(layer));
  switch (spec.layers[layer].attention) {
    case AttentionKind::kFull:
      weights.full = upload_full_attention(matrices, uploader, spec, tensors.full_attention(layer));
      break;
    case AttentionKind::kGatedDeltaNet:
      weights.gated_delta_net =
          upload_gated_delta_net(matrices, uploader, spec, tensors.gated_delta_net(layer));
      break;
    case AttentionKind::kLatent:
      weights.latent = upload_latent_attention(matrices, spec, tensors.latent_attention(layer));
      break;
  }
  weights.post_norm = matrices.vector(tensors.post_norm(layer));
  if (spec.layers[layer].ffn == FfnKind::kExperts) {
    weights.router = matrices.matrix(tensors.router(layer));
    weights.correction_bias = matrices.vector(tensors.correction_bias(layer));
    if (spec.shared_intermediate_dim != 0) {
      upload_shared_expert(matrices, uploader, spec, tensors, layer, weights);
    }
  }
  return weights;
}

/// What one FFN server holds of a layer, in the order of its local experts.
std::vector<FfnTensors> tensors_of(const ModelSpec& spec, const TensorMap& tensors,
                                   const FfnShare& share, std::uint32_t layer) {
  std::vector<FfnTensors> ffns;
  if (spec.layers[layer].ffn == FfnKind::kExperts) {
    for (const std::uint32_t expert : share.experts) {
      ffns.push_back(tensors.expert(layer, expert));
    }
    return ffns;
  }
  for (const std::uint32_t slice : share.slices) {
    ffns.push_back(tensors.dense_ffn(
        layer, dense_slice(spec.dense_intermediate_dim, share.num_slices, slice)));
  }
  return ffns;
}

kernels::cuda::ExpertWeights upload_experts(MatrixUploader& matrices, DeviceUploader& uploader,
                                            std::uint64_t hidden, const DeviceFfnDims& dims,
                                            const std::vector<FfnTensors>& experts) {
  const std::uint64_t width = dims.intermediate_dim;
  bf16* gate_up = uploader.reserve<bf16>(experts.size() * 2 * width * hidden);
  bf16* down = uploader.reserve<bf16>(experts.size() * width * hidden);
  const kernels::cuda::ExpertWeights weights{
      .dtype = DType::kBFloat16, .gate_up = gate_up, .down = down};
  for (const FfnTensors& expert : experts) {
    gate_up = matrices.into(gate_up, expert.gate, width, hidden);
    gate_up = matrices.into(gate_up, expert.up, width, hidden);
    down = matrices.into(down, expert.down, hidden, width);
  }
  return weights;
}

/// `staging`: GPU memory for one matrix in bf16, all that is ever there of those not yet FP8.
kernels::cuda::ExpertWeights upload_fp8_experts(MatrixUploader& matrices, DeviceUploader& uploader,
                                                std::uint64_t hidden, const DeviceFfnDims& dims,
                                                const std::vector<FfnTensors>& experts,
                                                bf16* staging) {
  const std::uint64_t width = dims.intermediate_dim;
  const std::size_t count = hidden * width;  // of each of an expert's three matrices
  const std::size_t scale_count = count / (kernels::kQuantizeBlock * kernels::kQuantizeBlock);
  auto* gate_up = uploader.reserve<std::uint8_t>(experts.size() * 2 * count);
  auto* down = uploader.reserve<std::uint8_t>(experts.size() * count);
  auto* gate_up_scales = uploader.reserve<float>(experts.size() * 2 * scale_count);
  auto* down_scales = uploader.reserve<float>(experts.size() * scale_count);
  const kernels::cuda::ExpertWeights weights{.dtype = DType::kFloat8E4M3,
                                             .gate_up = gate_up,
                                             .down = down,
                                             .gate_up_scales = gate_up_scales,
                                             .down_scales = down_scales};
  for (const FfnTensors& expert : experts) {
    for (const MatrixRef* matrix : {&expert.gate, &expert.up}) {
      matrices.into_fp8(*matrix, width, hidden, gate_up, gate_up_scales, staging);
      gate_up += count;
      gate_up_scales += scale_count;
    }
    matrices.into_fp8(expert.down, hidden, width, down, down_scales, staging);
    down += count;
    down_scales += scale_count;
  }
  return weights;
}

void require_whole_blocks(const ModelSpec& spec) {
  if (spec.hidden_dim % kernels::kQuantizeBlock != 0) {
    throw ModelError(
        fmt::format("config.json: hidden_size: {} is no multiple of {}, so that the experts can't "
                    "be FP8; use model.quantization: none",
                    spec.hidden_dim, kernels::kQuantizeBlock));
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
                            const TensorMap& tensors, const ExpertPlacement& placement,
                            ServerRank ffn_rank, const device::CudaDevice& device,
                            LoadReport* report) {
  DeviceUploader uploader(device);
  MatrixUploader matrices(source, report, uploader);
  const FfnShare share = FfnShare::of(placement, ffn_rank);
  const bool is_fp8 = spec.expert_dtype == DType::kFloat8E4M3;
  std::uint32_t widest = 0;
  DeviceFfnWeights weights;
  weights.dtype = spec.expert_dtype;
  for (const LayerSpec& layer : spec.layers) {
    const auto dims = DeviceFfnDims::of(spec, layer.ffn, placement, ffn_rank);
    weights.layers.push_back({.dims = dims, .weights = {}});
    widest = std::max(widest, dims.intermediate_dim);
  }
  if (is_fp8) {
    require_whole_blocks(spec);
  }
  const device::DeviceBuffer staging(
      device, is_fp8 ? std::size_t{widest} * spec.hidden_dim * sizeof(bf16) : sizeof(bf16));
  for (std::uint32_t layer = 0; layer < spec.num_layers; ++layer) {
    DeviceFfnLayer& to = weights.layers[layer];
    const auto experts = tensors_of(spec, tensors, share, layer);
    to.weights = is_fp8 ? upload_fp8_experts(matrices, uploader, spec.hidden_dim, to.dims, experts,
                                             staging.as<bf16>())
                        : upload_experts(matrices, uploader, spec.hidden_dim, to.dims, experts);
  }
  weights.memory = uploader.take();  // and nothing reads the staging area any more
  return weights;
}

}  // namespace fastfd::model
