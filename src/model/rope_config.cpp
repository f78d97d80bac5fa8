#include "model/rope_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "model/safetensors_header.h"

namespace fastfd::model {
namespace {

using kernels::RopeParams;
using kernels::RopeScaling;

constexpr const char* kTypes = "default, linear, dynamic, yarn, llama3";
constexpr double kLargestTheta = 1e15;
constexpr double kLargestFactor = 1e6;
constexpr double kLargestContext = 1e9;
const std::string kRemedy = "use the config.json that belongs to the checkpoint";

std::string read_type(const HfConfig& scaling) {
  return scaling.text_or("rope_type", scaling.text_or("type", "default"));
}

/// arXiv:2309.00071, 3.4, with DeepSeek's mscale.
double temperature(double factor, double mscale) {
  return factor <= 1.0 ? 1.0 : 0.1 * mscale * std::log(factor) + 1.0;
}

/// YaRN's temperature as transformers infers it.
double read_attention_factor(const HfConfig& scaling, double factor) {
  const double mscale = scaling.number_or("mscale", 0.0, 0.0, kLargestFactor);
  const double mscale_all_dim = scaling.number_or("mscale_all_dim", 0.0, 0.0, kLargestFactor);
  const double inferred = mscale != 0.0 && mscale_all_dim != 0.0
                              ? temperature(factor, mscale) / temperature(factor, mscale_all_dim)
                              : temperature(factor, 1.0);
  return scaling.number_or("attention_factor", inferred, 1e-6, kLargestFactor);
}

void read_yarn(const HfConfig& scaling, RopeParams& rope) {
  rope.scaling = RopeScaling::kYarn;
  rope.attention_factor = read_attention_factor(scaling, rope.factor);
  rope.beta_fast = scaling.number_or("beta_fast", 32.0, 1e-6, kLargestFactor);
  rope.beta_slow = scaling.number_or("beta_slow", 1.0, 1e-6, kLargestFactor);
  rope.truncate = scaling.flag_or("truncate", true);
}

void read_llama3(const HfConfig& scaling, RopeParams& rope) {
  rope.scaling = RopeScaling::kLlama3;
  rope.low_freq_factor = scaling.number("low_freq_factor", 1e-6, kLargestFactor);
  rope.high_freq_factor = scaling.number("high_freq_factor", 1e-6, kLargestFactor);
  if (rope.high_freq_factor <= rope.low_freq_factor) {
    scaling.fail("high_freq_factor",
                 fmt::format("{} is not more than low_freq_factor = {}", rope.high_freq_factor,
                             rope.low_freq_factor),
                 kRemedy);
  }
}

void read_scaling(const HfConfig& config, const HfConfig& scaling, const ModelSpec& spec,
                  RopeParams& rope) {
  const std::string type = read_type(scaling);
  if (type == "dynamic") {
    scaling.number("factor", 1e-6, kLargestFactor);  // unused up to max_position_embeddings
  }
  if (type == "default" || type == "dynamic") {
    return;
  }
  const bool is_known = type == "linear" || type == "yarn" || type == "llama3";
  if (!is_known) {
    scaling.fail("rope_type",
                 fmt::format("scaled rotary embedding {} is not supported", quote_name(type)),
                 fmt::format("use a model with one of {}", kTypes));
  }
  rope.factor = scaling.number("factor", 1e-6, kLargestFactor);
  rope.original_max_positions =
      config.number_or("original_max_position_embeddings",
                       scaling.number_or("original_max_position_embeddings", spec.max_positions,
                                         1.0, kLargestContext),
                       1.0, kLargestContext);
  if (type == "linear") {
    rope.scaling = RopeScaling::kLinear;
  } else if (type == "yarn") {
    if (rope.theta == 1.0) {
      config.fail("rope_theta", "is 1, with which YaRN has no frequencies to tell apart", kRemedy);
    }
    read_yarn(scaling, rope);
  } else {
    read_llama3(scaling, rope);
  }
}

/// Models with another embedding in some layers nest the parameters by layer type.
void refuse_nesting(const HfConfig& config, const HfConfig& parameters) {
  for (const auto& [key, value] : parameters.json().items()) {
    if (value.is_object()) {
      config.fail("rope_parameters", "differ by layer type, which is not supported",
                  "use a model with one rotary embedding");
    }
  }
}

/// transformers would take rope_scaling then and forget the theta of the other.
void refuse_two_places(const HfConfig& config) {
  const nlohmann::json* scaling = config.find("rope_scaling");
  const nlohmann::json* parameters = config.find("rope_parameters");
  if (scaling != nullptr && parameters != nullptr && !scaling->empty() && *scaling != *parameters) {
    config.fail("rope_scaling", "stands beside rope_parameters and says something else",
                "move its keys into rope_parameters");
  }
}

}  // namespace

double yarn_attention_factor(double factor) { return temperature(factor, 1.0); }

double read_rope_score_factor(const HfConfig& config) {
  const auto scaling =
      config.section(config.has("rope_parameters") ? "rope_parameters" : "rope_scaling");
  if (!scaling || read_type(*scaling) == "default") {
    return 1.0;
  }
  const double mscale = scaling->number_or("mscale_all_dim", 0.0, 0.0, kLargestFactor);
  if (mscale == 0.0) {
    return 1.0;
  }
  const double factor = temperature(scaling->number("factor", 1e-6, kLargestFactor), mscale);
  return factor * factor;
}

void read_rope(const HfConfig& config, double default_theta, double default_rotary_factor,
               ModelSpec& spec) {
  refuse_two_places(config);
  RopeParams& rope = spec.rope;
  rope.theta = config.number_or("rope_theta", default_theta, 1.0, kLargestTheta);
  double rotated = config.number_or("partial_rotary_factor", default_rotary_factor, 1e-6, 1.0);
  if (const auto parameters = config.section("rope_parameters")) {
    refuse_nesting(config, *parameters);
    rope.theta = parameters->number_or("rope_theta", rope.theta, 1.0, kLargestTheta);
    rotated = parameters->number_or("partial_rotary_factor", rotated, 1e-6, 1.0);
    read_scaling(config, *parameters, spec, rope);
  } else if (const auto scaling = config.section("rope_scaling")) {
    read_scaling(config, *scaling, spec, rope);
  }
  rope.rotary_dim = static_cast<std::int64_t>(spec.head_dim * rotated);
  if (config.has("rotary_dim")) {
    rope.rotary_dim = config.count("rotary_dim", 2, spec.head_dim);
  }
  if (rope.rotary_dim < 2 || rope.rotary_dim % 2 != 0) {
    config.fail(config.has("rotary_dim") ? "rotary_dim" : "partial_rotary_factor",
                fmt::format("leaves {} of {} elements of a head to rotate, which is no positive "
                            "even number",
                            rope.rotary_dim, spec.head_dim),
                kRemedy);
  }
}

}  // namespace fastfd::model
