#include <fmt/format.h>

#include <array>
#include <charconv>
#include <nlohmann/json.hpp>

#include "model/architecture.h"
#include "model/qwen3_moe_device.h"
#include "model/qwen3_moe_names.h"
#include "model/weight_reader.h"

namespace fastfd::model {
namespace {

// Far above any model there is, far below what would overflow or exhaust a machine by itself:
// config.json is believed only as far as the tensors' shapes confirm it.
constexpr std::uint32_t kMostVocabulary = 1U << 22;
constexpr std::uint32_t kMostHidden = 1U << 16;
constexpr std::uint32_t kMostLayers = 1U << 10;
constexpr std::uint32_t kMostHeads = 1U << 10;
constexpr std::uint32_t kMostHeadDim = 1U << 10;
constexpr std::uint32_t kMostPositions = 1U << 22;
constexpr std::uint32_t kMostExperts = 1U << 12;

using qwen3_moe::expert_name;
using qwen3_moe::layer_name;

std::int64_t signed_dim(std::uint64_t dim) { return static_cast<std::int64_t>(dim); }

/// Qwen3-MoE as in transformers' modeling_qwen3_moe.py: grouped-query attention with per-head
/// RMSNorm of q and k, and a softmax router over SwiGLU experts in every layer.
class Qwen3Moe final : public Architecture {
 public:
  std::string name() const override { return "Qwen3MoeForCausalLM"; }

  void read_config(const HfConfig& config, ModelSpec& spec) const override {
    refuse_variants(config);
    spec.vocab_size = config.count("vocab_size", 1, kMostVocabulary);
    spec.hidden_dim = config.count("hidden_size", 1, kMostHidden);
    spec.num_layers = config.count("num_hidden_layers", 1, kMostLayers);
    spec.num_q_heads = config.count("num_attention_heads", 1, kMostHeads);
    spec.num_kv_heads = config.count_or("num_key_value_heads", spec.num_q_heads, 1, kMostHeads);
    spec.head_dim =
        config.count_or("head_dim", spec.hidden_dim / spec.num_q_heads, 1, kMostHeadDim);
    spec.max_positions = config.count("max_position_embeddings", 1, kMostPositions);
    spec.rms_eps = static_cast<float>(config.number_or("rms_norm_eps", 1e-6, 1e-30, 1.0));
    spec.rope_theta = read_rope_theta(config);
    spec.tied_embeddings = config.flag_or("tie_word_embeddings", false);
    // transformers 5 writes the second name.
    const bool renamed = !config.has("num_experts") && config.has("num_local_experts");
    spec.num_experts = config.count(renamed ? "num_local_experts" : "num_experts", 1, kMostExperts);
    spec.experts_per_token = config.count("num_experts_per_tok", 1, kMostExperts);
    spec.expert_intermediate_dim = config.count("moe_intermediate_size", 1, kMostHidden);
    spec.renormalize_routes = config.flag_or("norm_topk_prob", false);
    check_dimensions(config, spec);
  }

  void check_tensors(const Checkpoint& checkpoint, const ModelSpec& spec) const override {
    using Shape = std::array<std::uint64_t, 2>;
    const auto vector = [&](const std::string& tensor, std::uint64_t dim) {
      checkpoint.require(tensor, std::array{dim});
    };
    const auto matrix = [&](const std::string& tensor, std::uint64_t rows, std::uint64_t cols) {
      checkpoint.require(tensor, Shape{rows, cols});
    };
    refuse_further_layers(checkpoint, spec.num_layers);
    const std::uint64_t hidden = spec.hidden_dim;
    matrix("model.embed_tokens.weight", spec.vocab_size, hidden);
    vector("model.norm.weight", hidden);
    if (!spec.tied_embeddings) {
      matrix("lm_head.weight", spec.vocab_size, hidden);
    }
    for (std::uint32_t layer = 0; layer < spec.num_layers; ++layer) {
      vector(layer_name(layer, "input_layernorm.weight"), hidden);
      vector(layer_name(layer, "post_attention_layernorm.weight"), hidden);
      vector(layer_name(layer, "self_attn.q_norm.weight"), spec.head_dim);
      vector(layer_name(layer, "self_attn.k_norm.weight"), spec.head_dim);
      matrix(layer_name(layer, "self_attn.q_proj.weight"), q_dim(spec), hidden);
      matrix(layer_name(layer, "self_attn.k_proj.weight"), kv_dim(spec), hidden);
      matrix(layer_name(layer, "self_attn.v_proj.weight"), kv_dim(spec), hidden);
      matrix(layer_name(layer, "self_attn.o_proj.weight"), hidden, q_dim(spec));
      matrix(layer_name(layer, "mlp.gate.weight"), spec.num_experts, hidden);
      for (std::uint32_t expert = 0; expert < spec.num_experts; ++expert) {
        matrix(expert_name(layer, expert, "gate_proj"), spec.expert_intermediate_dim, hidden);
        matrix(expert_name(layer, expert, "up_proj"), spec.expert_intermediate_dim, hidden);
        matrix(expert_name(layer, expert, "down_proj"), hidden, spec.expert_intermediate_dim);
      }
    }
  }

  AttentionWeights load_attention(const TensorSource& source, const ModelSpec& spec,
                                  LoadReport* report) const override {
    WeightReader reader(source, report);
    device::HostArena arena;
    AttentionWeights weights;
    weights.lm_head =
        kernels::PackedWeights(signed_dim(spec.vocab_size), signed_dim(spec.hidden_dim), &arena);
    const char* head = spec.tied_embeddings ? "model.embed_tokens.weight" : "lm_head.weight";
    reader.pack(head, spec.vocab_size, spec.hidden_dim, weights.lm_head);
    if (!spec.tied_embeddings) {
      reader.read_matrix("model.embed_tokens.weight", spec.vocab_size, spec.hidden_dim,
                         weights.embedding);
    }
    weights.final_norm = reader.read_vector("model.norm.weight", spec.hidden_dim);
    for (std::uint32_t layer = 0; layer < spec.num_layers; ++layer) {
      weights.layers.push_back(load_attention_layer(reader, spec, layer, arena));
    }
    return weights;
  }

  FfnWeights load_ffn(const TensorSource& source, const ModelSpec& spec,
                      const std::vector<std::uint32_t>& experts,
                      LoadReport* report) const override {
    WeightReader reader(source, report);
    const std::uint64_t hidden = spec.hidden_dim;
    const std::uint64_t intermediate = spec.expert_intermediate_dim;
    std::vector<bf16> gate;
    std::vector<bf16> up;
    std::vector<bf16> down;
    device::HostArena arena;
    FfnWeights weights;
    weights.layers.resize(spec.num_layers);
    for (std::uint32_t layer = 0; layer < spec.num_layers; ++layer) {
      for (const std::uint32_t expert : experts) {
        reader.read_matrix(expert_name(layer, expert, "gate_proj"), intermediate, hidden, gate);
        reader.read_matrix(expert_name(layer, expert, "up_proj"), intermediate, hidden, up);
        reader.read_matrix(expert_name(layer, expert, "down_proj"), hidden, intermediate, down);
        weights.layers[layer].push_back(
            kernels::ExpertWeights::pack(gate.data(), up.data(), down.data(), signed_dim(hidden),
                                         signed_dim(intermediate), &arena));
      }
    }
    return weights;
  }

  DeviceAttentionWeights upload_attention(const TensorSource& source, const ModelSpec& spec,
                                          const device::CudaDevice& device,
                                          LoadReport* report) const override {
    return qwen3_moe::upload_attention(source, spec, device, report);
  }

  DeviceFfnWeights upload_ffn(const TensorSource& source, const ModelSpec& spec,
                              const std::vector<std::uint32_t>& experts,
                              const device::CudaDevice& device, LoadReport* report) const override {
    return qwen3_moe::upload_ffn(source, spec, experts, device, report);
  }

 private:
  /// A config.json with fewer layers than the checkpoint would serve half a model.
  static void refuse_further_layers(const Checkpoint& checkpoint, std::uint32_t num_layers) {
    const std::string prefix = "model.layers.";
    for (auto at = checkpoint.tensors().lower_bound(prefix);
         at != checkpoint.tensors().end() && at->first.starts_with(prefix); ++at) {
      const std::string& name = at->first;
      std::uint64_t layer = 0;
      const auto parsed =
          std::from_chars(name.data() + prefix.size(), name.data() + name.size(), layer);
      if (parsed.ec == std::errc{} && layer >= num_layers) {
        throw ModelError(fmt::format(
            "{}: tensor {} belongs to no layer: config.json's num_hidden_layers is {}; use the "
            "config.json that belongs to the checkpoint",
            checkpoint.files()[at->second.file_index].string(), name, num_layers));
      }
    }
  }

  static std::uint64_t q_dim(const ModelSpec& spec) {
    return std::uint64_t{spec.num_q_heads} * spec.head_dim;
  }
  static std::uint64_t kv_dim(const ModelSpec& spec) {
    return std::uint64_t{spec.num_kv_heads} * spec.head_dim;
  }

  /// Settings under which the same tensors mean another computation.
  static void refuse_variants(const HfConfig& config) {
    if (const std::string act = config.text_or("hidden_act", "silu"); act != "silu") {
      config.fail("hidden_act", "'" + act + "' is not supported", "use a model with 'silu'");
    }
    if (config.flag_or("attention_bias", false)) {
      config.fail("attention_bias", "biases in attention are not supported",
                  "use a model without them");
    }
    if (config.flag_or("use_sliding_window", false)) {
      config.fail("use_sliding_window", "sliding-window attention is not supported",
                  "use a model with full attention");
    }
    if (config.count_or("decoder_sparse_step", 1, 0, kMostLayers) != 1) {
      config.fail("decoder_sparse_step", "dense layers between the sparse ones are not supported",
                  "use a model with experts in every layer (decoder_sparse_step 1)");
    }
    if (const auto* dense = config.find("mlp_only_layers");
        dense != nullptr && !(dense->is_array() && dense->empty())) {
      config.fail("mlp_only_layers", "dense layers among the sparse ones are not supported",
                  "use a model with experts in every layer (an empty list)");
    }
    refuse_rope_scaling(config, "rope_scaling");
    refuse_rope_scaling(config, "rope_parameters");
  }

  /// transformers 4 has rope_scaling: null or {"rope_type": ...} and rope_theta beside it;
  /// transformers 5 has both in rope_parameters.
  static void refuse_rope_scaling(const HfConfig& config, const std::string& key) {
    const auto* scaling = config.find(key);
    if (scaling == nullptr) {
      return;
    }
    std::string type = "default";
    if (!scaling->is_object()) {
      config.fail(key, "is not an object", "use the config.json that belongs to the checkpoint");
    }
    for (const char* name : {"rope_type", "type"}) {
      if (const auto at = scaling->find(name); at != scaling->end() && !at->is_null()) {
        type = at->is_string() ? at->get<std::string>() : "?";
      }
    }
    if (type != "default") {
      config.fail(key, "scaled rotary embedding '" + type + "' is not supported",
                  "remove the key to serve the unscaled context length");
    }
  }

  static double read_rope_theta(const HfConfig& config) {
    constexpr double kDefault = 10000.0;
    constexpr double kLargest = 1e15;
    if (const auto* parameters = config.find("rope_parameters")) {
      if (const auto at = parameters->find("rope_theta"); at != parameters->end()) {
        const double theta = at->is_number() ? at->get<double>() : 0.0;
        if (!(theta >= 1.0 && theta <= kLargest)) {
          config.fail("rope_parameters", "rope_theta is not a number from 1 to 1e15",
                      "use the config.json that belongs to the checkpoint");
        }
        return theta;
      }
    }
    return config.number_or("rope_theta", kDefault, 1.0, kLargest);
  }

  static void check_dimensions(const HfConfig& config, const ModelSpec& spec) {
    const std::string remedy = "use the config.json that belongs to the checkpoint";
    if (spec.num_q_heads % spec.num_kv_heads != 0) {
      config.fail("num_key_value_heads",
                  fmt::format("{} does not divide num_attention_heads = {}", spec.num_kv_heads,
                              spec.num_q_heads),
                  remedy);
    }
    if (!config.has("head_dim") && spec.hidden_dim % spec.num_q_heads != 0) {
      config.fail("num_attention_heads",
                  fmt::format("{} does not divide hidden_size = {} and head_dim is not given",
                              spec.num_q_heads, spec.hidden_dim),
                  remedy);
    }
    if (spec.head_dim == 0 || spec.head_dim % 2 != 0) {
      config.fail("head_dim", fmt::format("{} is no positive even number", spec.head_dim), remedy);
    }
    if (spec.experts_per_token > spec.num_experts) {
      config.fail(
          "num_experts_per_tok",
          fmt::format("{} is more than num_experts = {}", spec.experts_per_token, spec.num_experts),
          remedy);
    }
  }

  static AttentionLayerWeights load_attention_layer(WeightReader& reader, const ModelSpec& spec,
                                                    std::uint32_t layer, device::HostArena& arena) {
    const std::uint64_t hidden = spec.hidden_dim;
    const std::uint64_t q = q_dim(spec);
    const std::uint64_t kv = kv_dim(spec);
    AttentionLayerWeights weights;
    weights.input_norm = reader.read_vector(layer_name(layer, "input_layernorm.weight"), hidden);
    weights.qkv = kernels::PackedWeights(signed_dim(q + 2 * kv), signed_dim(hidden), &arena);
    reader.pack(layer_name(layer, "self_attn.q_proj.weight"), q, hidden, weights.qkv);
    reader.pack(layer_name(layer, "self_attn.k_proj.weight"), kv, hidden, weights.qkv, q);
    reader.pack(layer_name(layer, "self_attn.v_proj.weight"), kv, hidden, weights.qkv, q + kv);
    weights.q_norm =
        reader.read_vector(layer_name(layer, "self_attn.q_norm.weight"), spec.head_dim);
    weights.k_norm =
        reader.read_vector(layer_name(layer, "self_attn.k_norm.weight"), spec.head_dim);
    weights.out = kernels::PackedWeights(signed_dim(hidden), signed_dim(q), &arena);
    reader.pack(layer_name(layer, "self_attn.o_proj.weight"), hidden, q, weights.out);
    weights.post_norm =
        reader.read_vector(layer_name(layer, "post_attention_layernorm.weight"), hidden);
    weights.router =
        kernels::PackedWeights(signed_dim(spec.num_experts), signed_dim(hidden), &arena);
    reader.pack(layer_name(layer, "mlp.gate.weight"), spec.num_experts, hidden, weights.router);
    return weights;
  }
};

}  // namespace

std::unique_ptr<Architecture> make_qwen3_moe() { return std::make_unique<Qwen3Moe>(); }

}  // namespace fastfd::model
