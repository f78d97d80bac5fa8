#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "fastfd/core/check.h"
#include "kernels/rope/op.h"

namespace fastfd::kernels {
namespace {

/// theta^(2i/rotary_dim)
float wavelength_ratio(const RopeParams& params, std::size_t i) {
  const float exponent = static_cast<float>(2 * i) / static_cast<float>(params.rotary_dim);
  return std::pow(static_cast<float>(params.theta), exponent);
}

/// transformers' _compute_yarn_parameters.
void scale_yarn(const RopeParams& params, std::vector<float>& frequencies) {
  const auto dim = static_cast<double>(params.rotary_dim);
  const auto dimension_of = [&](double rotations) {
    return dim * std::log(params.original_max_positions / (rotations * 2.0 * std::numbers::pi)) /
           (2.0 * std::log(params.theta));
  };
  double low = dimension_of(params.beta_fast);
  double high = dimension_of(params.beta_slow);
  if (params.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, dim - 1.0);
  if (low == high) {
    high += 0.001;
  }
  const auto first = static_cast<float>(low);
  const auto width = static_cast<float>(high - low);
  for (std::size_t i = 0; i < frequencies.size(); ++i) {
    const float ramp = std::clamp((static_cast<float>(i) - first) / width, 0.0F, 1.0F);
    const float kept = 1.0F - ramp;
    const float scaled = 1.0F / (static_cast<float>(params.factor) * wavelength_ratio(params, i));
    frequencies[i] = scaled * (1.0F - kept) + frequencies[i] * kept;
  }
}

/// transformers' _compute_llama3_parameters.
void scale_llama3(const RopeParams& params, std::vector<float>& frequencies) {
  const auto context = static_cast<float>(params.original_max_positions);
  const auto low_factor = static_cast<float>(params.low_freq_factor);
  const auto high_factor = static_cast<float>(params.high_freq_factor);
  const auto factor = static_cast<float>(params.factor);
  for (float& frequency : frequencies) {
    const float wavelength = 2.0F * std::numbers::pi_v<float> / frequency;
    if (wavelength < context / high_factor) {
      continue;
    }
    if (wavelength > context / low_factor) {
      frequency /= factor;
      continue;
    }
    const float smooth = (context / wavelength - low_factor) / (high_factor - low_factor);
    frequency = (1.0F - smooth) * frequency / factor + smooth * frequency;
  }
}

std::vector<float> inverse_frequencies(const RopeParams& params) {
  std::vector<float> frequencies(static_cast<std::size_t>(params.rotary_dim / 2));
  for (std::size_t i = 0; i < frequencies.size(); ++i) {
    frequencies[i] = 1.0F / wavelength_ratio(params, i);
  }
  switch (params.scaling) {
    case RopeScaling::kNone:
      break;
    case RopeScaling::kLinear:
      for (float& frequency : frequencies) {
        frequency /= static_cast<float>(params.factor);
      }
      break;
    case RopeScaling::kYarn:
      scale_yarn(params, frequencies);
      break;
    case RopeScaling::kLlama3:
      scale_llama3(params, frequencies);
      break;
  }
  return frequencies;
}

}  // namespace

RopeTable RopeTable::make(std::int64_t max_positions, const RopeParams& params) {
  check(max_positions >= 0 && params.rotary_dim >= 2 && params.rotary_dim % 2 == 0 &&
            params.theta > 0.0,
        "a RoPE table needs an even rotary_dim and a positive theta");
  check(params.scaling == RopeScaling::kNone || params.factor > 0.0,
        "a scaled RoPE table needs a positive factor");
  RopeTable table;
  table.max_positions = max_positions;
  table.rotary_dim = params.rotary_dim;
  const std::vector<float> frequencies = inverse_frequencies(params);
  const auto magnitude =
      static_cast<float>(params.scaling == RopeScaling::kYarn ? params.attention_factor : 1.0);
  const std::size_t count = static_cast<std::size_t>(max_positions) * frequencies.size();
  table.cos.reserve(count);
  table.sin.reserve(count);
  for (std::int64_t position = 0; position < max_positions; ++position) {
    for (const float frequency : frequencies) {
      const float angle = static_cast<float>(position) * frequency;
      table.cos.push_back(std::cos(angle) * magnitude);
      table.sin.push_back(std::sin(angle) * magnitude);
    }
  }
  return table;
}

Status RopeTable::check_positions(const char* op, const std::int32_t* positions,
                                  std::int64_t num_rows) const {
  for (std::int64_t row = 0; row < num_rows; ++row) {
    if (positions[row] < 0 || positions[row] >= max_positions) {
      return {StatusCode::kInvalidArgument,
              fmt::format("{}: position {} of row {} is outside the table of {}", op,
                          positions[row], row, max_positions)};
    }
  }
  return Status::ok();
}

}  // namespace fastfd::kernels
