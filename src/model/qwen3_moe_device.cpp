#include "model/qwen3_moe_device.h"

#include "model/device_uploader.h"
#include "model/qwen3_moe_names.h"
#include "model/weight_reader.h"

namespace fastfd::model::qwen3_moe {
namespace {

/// Reads matrices one after the other through one host buffer.
class MatrixUploader {
 public:
  MatrixUploader(const Checkpoint& checkpoint, LoadReport* report, DeviceUploader& uploader)
      : reader_(checkpoint, report), uploader_(uploader) {}

  WeightReader& reader() { return reader_; }

  const float* vector(const std::string& name, std::uint64_t dim) {
    return uploader_.put(reader_.read_vector(name, dim));
  }
  const bf16* matrix(const std::string& name, std::uint64_t rows, std::uint64_t cols) {
    bf16* to = uploader_.reserve<bf16>(rows * cols);
    into(to, name, rows, cols);
    return to;
  }
  /// Writes a matrix where there is room already; returns the end.
  bf16* into(bf16* to, const std::string& name, std::uint64_t rows, std::uint64_t cols) {
    reader_.read_matrix(name, rows, cols, host_);
    uploader_.copy(to, host_.data(), host_.size());
    return to + host_.size();
  }

 private:
  WeightReader reader_;
  DeviceUploader& uploader_;
  std::vector<bf16> host_;
};

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

}  // namespace

DeviceAttentionWeights upload_attention(const Checkpoint& checkpoint, const ModelSpec& spec,
                                        const device::CudaDevice& device, LoadReport* report) {
  DeviceUploader uploader(device);
  MatrixUploader matrices(checkpoint, report, uploader);
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

DeviceFfnWeights upload_ffn(const Checkpoint& checkpoint, const ModelSpec& spec,
                            const std::vector<std::uint32_t>& experts,
                            const device::CudaDevice& device, LoadReport* report) {
  DeviceUploader uploader(device);
  MatrixUploader matrices(checkpoint, report, uploader);
  const std::uint64_t hidden = spec.hidden_dim;
  const std::uint64_t intermediate = spec.expert_intermediate_dim;
  DeviceFfnWeights weights;
  weights.num_experts = static_cast<std::uint32_t>(experts.size());
  for (std::uint32_t layer = 0; layer < spec.num_layers; ++layer) {
    bf16* gate_up = uploader.reserve<bf16>(experts.size() * 2 * intermediate * hidden);
    bf16* down = uploader.reserve<bf16>(experts.size() * hidden * intermediate);
    weights.layers.push_back({gate_up, down});
    for (const std::uint32_t expert : experts) {
      gate_up =
          matrices.into(gate_up, expert_name(layer, expert, "gate_proj"), intermediate, hidden);
      gate_up = matrices.into(gate_up, expert_name(layer, expert, "up_proj"), intermediate, hidden);
      down = matrices.into(down, expert_name(layer, expert, "down_proj"), hidden, intermediate);
    }
  }
  weights.memory = uploader.take();
  return weights;
}

}  // namespace fastfd::model::qwen3_moe
