#include "model/decoder_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "model/rope_config.h"
#include "model/safetensors_header.h"

namespace fastfd::model {
namespace {

constexpr std::uint32_t kMostVocabulary = 1U << 22;
constexpr std::uint32_t kMostHeads = 1U << 10;
constexpr std::uint32_t kMostHeadDim = 1U << 10;
constexpr std::uint32_t kMostPositions = 1U << 24;
constexpr const char* kFullAttention = "full_attention";
constexpr const char* kSlidingAttention = "sliding_attention";
const std::string kRemedy = "use the config.json that belongs to the checkpoint";

void check_heads(const HfConfig& config, const ModelSpec& spec, bool head_dim_is_given) {
  if (spec.num_q_heads % spec.num_kv_heads != 0) {
    config.fail("num_key_value_heads",
                fmt::format("{} does not divide num_attention_heads = {}", spec.num_kv_heads,
                            spec.num_q_heads),
                kRemedy);
  }
  if (!head_dim_is_given && spec.hidden_dim % spec.num_q_heads != 0) {
    config.fail("num_attention_heads",
                fmt::format("{} does not divide hidden_size = {} and head_dim is not given",
                            spec.num_q_heads, spec.hidden_dim),
                kRemedy);
  }
  if (spec.head_dim == 0 || spec.head_dim % 2 != 0) {
    config.fail("head_dim", fmt::format("{} is no positive even number", spec.head_dim), kRemedy);
  }
}

/// Of every model, also of one whose layers are all alike: a list of another length is another
/// model's.
void check_layer_count(const HfConfig& config, const ModelSpec& spec) {
  const nlohmann::json* types = config.find("layer_types");
  if (types != nullptr && (!types->is_array() || types->size() != spec.num_layers)) {
    config.fail("layer_types",
                fmt::format("is not a list of num_hidden_layers = {} names", spec.num_layers),
                kRemedy);
  }
}

void check_layer_types(const HfConfig& config, const nlohmann::json& types) {
  for (const auto& type : types) {
    if (type != kFullAttention && type != kSlidingAttention) {
      config.fail("layer_types", fmt::format("{} is not supported", quote_name(type.dump())),
                  fmt::format("use a model of {} and {}", kFullAttention, kSlidingAttention));
    }
  }
}

}  // namespace

void read_decoder(const HfConfig& config, const DecoderDefaults& defaults, ModelSpec& spec) {
  require_text(config, "hidden_act", "silu");
  spec.vocab_size = config.count("vocab_size", 1, kMostVocabulary);
  spec.hidden_dim = config.count("hidden_size", 1, kMostHidden);
  spec.num_layers = config.count("num_hidden_layers", 1, kMostLayers);
  spec.layers.assign(spec.num_layers, {.ffn = FfnKind::kDense});
  check_layer_count(config, spec);
  spec.num_q_heads = config.count("num_attention_heads", 1, kMostHeads);
  spec.num_kv_heads = config.count_or(
      "num_key_value_heads", defaults.num_kv_heads != 0 ? defaults.num_kv_heads : spec.num_q_heads,
      1, kMostHeads);
  const bool head_dim_is_given = config.has("head_dim") || defaults.head_dim != 0;
  spec.head_dim = config.count_or(
      "head_dim", defaults.head_dim != 0 ? defaults.head_dim : spec.hidden_dim / spec.num_q_heads,
      1, kMostHeadDim);
  spec.max_positions = config.count("max_position_embeddings", 1, kMostPositions);
  spec.rms_eps = static_cast<float>(config.number_or("rms_norm_eps", defaults.rms_eps, 1e-30, 1.0));
  spec.tied_embeddings = config.flag_or("tie_word_embeddings", defaults.tied_embeddings);
  check_heads(config, spec, head_dim_is_given);
  read_rope(config, defaults.rope_theta, defaults.partial_rotary_factor, spec);
}

void read_dense_ffn(const HfConfig& config, ModelSpec& spec) {
  spec.dense_intermediate_dim = config.count("intermediate_size", 1, kMostHidden * 4);
}

void read_experts(const HfConfig& config, const std::string& intermediate_key, ModelSpec& spec) {
  const std::vector<std::string> keys = {"num_experts", "num_local_experts", "n_routed_experts"};
  spec.num_experts = config.count_of_any(keys, 1, kMostExperts);
  spec.experts_per_token = config.count("num_experts_per_tok", 1, kMostExperts);
  spec.expert_intermediate_dim = config.count(intermediate_key, 1, kMostHidden);
  for (LayerSpec& layer : spec.layers) {
    layer.ffn = FfnKind::kExperts;
  }
  if (spec.experts_per_token > spec.num_experts) {
    const auto key = std::find_if(keys.begin(), keys.end(),
                                  [&](const std::string& name) { return config.has(name); });
    config.fail(
        "num_experts_per_tok",
        fmt::format("{} is more than {} = {}", spec.experts_per_token, *key, spec.num_experts),
        kRemedy);
  }
}

void read_sparse_layers(const HfConfig& config, ModelSpec& spec) {
  const std::uint32_t step = config.count_or("decoder_sparse_step", 1, 1, kMostLayers);
  for (std::uint32_t layer = 0; layer < spec.num_layers; ++layer) {
    if ((layer + 1) % step != 0) {
      spec.layers[layer].ffn = FfnKind::kDense;
    }
  }
  const nlohmann::json* dense = config.find("mlp_only_layers");
  if (dense != nullptr && !dense->is_array()) {
    config.fail("mlp_only_layers", "is not a list", kRemedy);
  }
  for (const auto& layer : dense != nullptr ? *dense : nlohmann::json::array()) {
    if (!layer.is_number_unsigned() || layer.get<std::uint64_t>() >= spec.num_layers) {
      config.fail(
          "mlp_only_layers",
          fmt::format("{} is no layer below num_hidden_layers = {}", layer.dump(), spec.num_layers),
          kRemedy);
    }
    spec.layers[layer.get<std::uint32_t>()].ffn = FfnKind::kDense;
  }
  if (spec.has_layer(FfnKind::kDense)) {
    read_dense_ffn(config, spec);
  }
}

void read_sliding_window(const HfConfig& config, const WindowDefaults& defaults, ModelSpec& spec) {
  // null says that there is none, a missing key nothing.
  const bool is_null = config.json().contains("sliding_window") && !config.has("sliding_window");
  const std::uint32_t window =
      config.count_or("sliding_window", is_null ? 0 : defaults.default_window, 0, 1U << 30);
  const nlohmann::json* types = defaults.reads_layer_types ? config.find("layer_types") : nullptr;
  if (types != nullptr) {
    check_layer_types(config, *types);
  }
  if (!config.flag_or("use_sliding_window", defaults.default_use) || window >= spec.max_positions) {
    return;
  }
  for (std::uint32_t layer = 0; layer < spec.num_layers; ++layer) {
    const bool has_by_default =
        layer >= defaults.first_layer && !(defaults.alternates && layer % 2 != 0);
    if (types != nullptr ? (*types)[layer] == kSlidingAttention : has_by_default) {
      spec.layers[layer].window = window;
    }
  }
}

void require_text(const HfConfig& config, const std::string& key, const std::string& text) {
  if (const std::string value = config.text_or(key, text); value != text) {
    config.fail(key, fmt::format("{} is not supported", quote_name(value)),
                fmt::format("use a model with '{}'", text));
  }
}

void refuse_flag(const HfConfig& config, const std::string& key, const std::string& what) {
  if (config.flag_or(key, false)) {
    config.fail(key, what + " are not supported", "use a model without them");
  }
}

}  // namespace fastfd::model
