#include "model/quantization.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "kernels/quantize/op.h"
#include "model/safetensors_header.h"

namespace fastfd::model {
namespace {

constexpr const char* kKey = "quantization_config";
constexpr const char* kSupported =
    "use the model's BF16, F16 or F32 checkpoint (no quantization_config), or its FP8 one "
    "(quant_method fp8, weight_block_size [128, 128], activation_scheme dynamic)";

[[noreturn]] void refuse(const HfConfig& config, const std::string& key, const std::string& what) {
  config.fail(key, "quantization " + what + " is not supported", kSupported);
}

/// A text, or `fallback` if the key is absent or null.
std::string read_text(const HfConfig& config, const nlohmann::json& quantization, const char* key,
                      const std::string& fallback) {
  const auto at = quantization.find(key);
  if (at == quantization.end() || at->is_null()) {
    return fallback;
  }
  if (!at->is_string()) {
    config.fail(std::string(kKey) + "." + key, "is not a text", kSupported);
  }
  return at->get<std::string>();
}

void require_blocks(const HfConfig& config, const nlohmann::json& quantization) {
  const auto at = quantization.find("weight_block_size");
  if (at == quantization.end()) {
    return;  // transformers' default is 128 x 128
  }
  if (at->is_null()) {
    refuse(config, kKey, "'fp8' with a scale a tensor (weight_block_size null)");
  }
  if (*at != nlohmann::json::array({kernels::kQuantizeBlock, kernels::kQuantizeBlock})) {
    refuse(config, kKey, "'fp8' with weight_block_size " + quote_name(at->dump()));
  }
}

void require_list_of_names(const HfConfig& config, const nlohmann::json& quantization,
                           const char* key) {
  const auto at = quantization.find(key);
  if (at == quantization.end() || at->is_null()) {
    return;
  }
  const auto is_name = [](const nlohmann::json& name) { return name.is_string(); };
  if (!at->is_array() || !std::all_of(at->begin(), at->end(), is_name)) {
    config.fail(std::string(kKey) + "." + key, "is not a list of module names",
                "use the config.json that belongs to the checkpoint");
  }
}

}  // namespace

StoredQuantization read_quantization(const HfConfig& config, bool may_be_mxfp4) {
  if (config.has("compression_config")) {
    refuse(config, "compression_config", "'compressed-tensors'");
  }
  const nlohmann::json* quantization = config.find(kKey);
  if (quantization == nullptr) {
    return StoredQuantization::kNone;
  }
  if (!quantization->is_object()) {
    config.fail(kKey, "is not an object", "use the config.json that belongs to the checkpoint");
  }
  const std::string method = read_text(config, *quantization, "quant_method", "");
  require_list_of_names(config, *quantization, "modules_to_not_convert");
  if (method == "mxfp4" && may_be_mxfp4) {
    return StoredQuantization::kMxfp4;
  }
  if (method != "fp8") {
    refuse(config, kKey, method.empty() ? "of an unnamed method" : quote_name(method));
  }
  require_blocks(config, *quantization);
  if (const auto scheme = read_text(config, *quantization, "activation_scheme", "dynamic");
      scheme != "dynamic") {
    refuse(config, kKey, "'fp8' with activation_scheme " + quote_name(scheme));
  }
  if (const auto experts = read_text(config, *quantization, "expert_dtype", "fp8");
      experts != "fp8") {
    refuse(config, kKey, "'fp8' with expert_dtype " + quote_name(experts));
  }
  require_list_of_names(config, *quantization, "ignored_layers");
  return StoredQuantization::kFp8Blocks;
}

}  // namespace fastfd::model
