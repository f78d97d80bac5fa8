#pragma once

#include <string>
#include <vector>

namespace fastfd::model {

/// What an architecture calls its tensors. The defaults are what most use. Names of a layer follow
/// `layers` and its number; names of an FFN follow its prefix.
struct TensorNames {
  /// Where the decoder is: the first of these whose embedding the checkpoint has.
  std::vector<std::string> decoder = {"model."};
  std::string embedding = "embed_tokens.weight";  ///< of the decoder, as final_norm and layers
  std::string final_norm = "norm.weight";
  std::string layers = "layers.";
  std::string lm_head = "lm_head.weight";
  std::string input_norm = "input_layernorm.weight";
  std::string post_norm = "post_attention_layernorm.weight";
  std::string attention = "self_attn.";          ///< q_proj, k_proj, v_proj, o_proj, q_norm, k_norm
  std::string gated_delta_net = "linear_attn.";  ///< in_proj_*, conv1d, A_log, dt_bias, norm, ...

  std::string dense_ffn = "mlp.";  ///< gate_proj, up_proj, down_proj

  /// Where router and experts are: the first of these whose router the checkpoint has.
  std::vector<std::string> sparse_ffn = {"mlp."};
  std::string router = "gate.weight";
  std::string correction_bias = "gate.e_score_correction_bias";
  /// Of experts.N., unless the checkpoint has all in experts.gate_up_proj [experts, 2 *
  /// intermediate, hidden] and experts.down_proj [experts, hidden, intermediate].
  std::string expert_gate = "gate_proj";
  std::string expert_up = "up_proj";
  std::string expert_down = "down_proj";
  /// Experts are stacked, gate and up alternate, and their matrices lie transposed: gate_up_proj
  /// [experts, hidden, 2 * intermediate], down_proj [experts, intermediate, hidden]; not so those
  /// in MXFP4, whose groups run along a row: [experts, 2 * intermediate, hidden] and [experts,
  /// hidden, intermediate]. Biases are gate_up_proj_bias and down_proj_bias.
  bool interleaved_experts = false;
  std::string router_bias = "gate.bias";
  std::string shared_expert = "shared_experts.";
  std::string shared_gate = "shared_expert_gate.weight";
};

}  // namespace fastfd::model
