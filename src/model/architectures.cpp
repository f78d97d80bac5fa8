// The architectures that FastFD serves. Defaults and meaning of every setting are those of the
// model's configuration_*.py and modeling_*.py in transformers.
#include "model/architecture.h"
#include "model/decoder_config.h"

namespace fastfd::model {
namespace {

using kernels::QkNorm;

/// Window that Qwen's configurations assume where config.json has none.
constexpr std::uint32_t kQwenWindow = 4096;

void read_qwen3_moe(const HfConfig& config, ModelSpec& spec) {
  read_decoder(config, {}, spec);
  read_experts(config, "moe_intermediate_size", spec);
  read_sparse_layers(config, spec);
  spec.qk_norm = QkNorm::kPerHead;
  spec.qkv_bias = spec.out_bias = config.flag_or("attention_bias", false);
  spec.router.renormalize = config.flag_or("norm_topk_prob", false);
  refuse_sliding_window(config, spec, /*default_use=*/false, kQwenWindow);
}

}  // namespace

std::vector<Architecture> all_architectures() {
  return {
      {.name = "Qwen3MoeForCausalLM", .tensors = {}, .read_config = read_qwen3_moe},
  };
}

}  // namespace fastfd::model
