#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "kernels/expert_ffn/op.h"

namespace fastfd::kernels {
namespace {

float rounded(float value, Precision precision) {
  return precision == Precision::kBFloat16 ? bf16::from_float(value).to_float() : value;
}

std::vector<float> read_row(const void* row, DType dtype, std::int64_t dim) {
  std::vector<float> values(static_cast<std::size_t>(dim));
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (dtype == DType::kFloat32) {
      std::memcpy(&values[i], static_cast<const std::byte*>(row) + i * sizeof(float),
                  sizeof(float));
    } else {
      bf16 value;
      std::memcpy(&value, static_cast<const std::byte*>(row) + i * sizeof(bf16), sizeof(bf16));
      values[i] = value.to_float();
    }
  }
  return values;
}

void write_row(void* row, DType dtype, const std::vector<float>& values) {
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (dtype == DType::kFloat32) {
      std::memcpy(static_cast<std::byte*>(row) + i * sizeof(float), &values[i], sizeof(float));
    } else {
      const bf16 value = bf16::from_float(values[i]);
      std::memcpy(static_cast<std::byte*>(row) + i * sizeof(bf16), &value, sizeof(bf16));
    }
  }
}

float dot(const PackedWeights& weights, std::int64_t row, const std::vector<float>& x) {
  float sum = 0.0F;
  for (std::size_t i = 0; i < x.size(); ++i) {
    sum += x[i] * weights.at(row, static_cast<std::int64_t>(i)).to_float();
  }
  return sum;
}

float bias_of(const std::vector<float>& biases, std::int64_t row) {
  return biases.empty() ? 0.0F : biases[static_cast<std::size_t>(row)];
}

float activate(const ActivationRule& rule, float gate, float up) {
  if (rule.kind == GatedActivation::kSwiglu) {
    return gate / (1.0F + std::exp(-gate)) * up;
  }
  gate = std::min(gate, rule.limit);
  up = std::clamp(up, -rule.limit, rule.limit);
  return gate / (1.0F + std::exp(-rule.alpha * gate)) * (up + 1.0F);
}

std::vector<float> run_expert(const ExpertWeights& expert, const ExpertFfnParams& params,
                              std::vector<float> x) {
  for (float& value : x) {
    value = rounded(value, params.precision);
  }
  std::vector<float> hidden(static_cast<std::size_t>(params.intermediate_dim));
  for (std::int64_t j = 0; j < params.intermediate_dim; ++j) {
    const std::int64_t gate_row = j / 32 * 64 + j % 32;
    const float gate = dot(expert.gate_up, gate_row, x) + bias_of(expert.gate_up_bias, gate_row);
    const float up =
        dot(expert.gate_up, gate_row + 32, x) + bias_of(expert.gate_up_bias, gate_row + 32);
    hidden[static_cast<std::size_t>(j)] =
        rounded(activate(params.activation, gate, up), params.precision);
  }
  std::vector<float> y(static_cast<std::size_t>(params.hidden_dim));
  for (std::int64_t j = 0; j < params.hidden_dim; ++j) {
    y[static_cast<std::size_t>(j)] = dot(expert.down, j, hidden) + bias_of(expert.down_bias, j);
  }
  return y;
}

}  // namespace

void reference_expert_ffn(const ExpertFfnParams& params) {
  for (std::int64_t token = 0; token < params.num_tokens; ++token) {
    std::vector<std::uint32_t> routes;
    for (std::uint32_t r = params.route_offsets[token]; r < params.route_offsets[token + 1]; ++r) {
      routes.push_back(r);
    }
    std::stable_sort(routes.begin(), routes.end(), [&](std::uint32_t a, std::uint32_t b) {
      return params.route_experts[a] < params.route_experts[b];
    });
    std::vector<float> out(static_cast<std::size_t>(params.hidden_dim), 0.0F);
    const auto x = read_row(params.token_rows[token], params.token_dtype, params.hidden_dim);
    for (const std::uint32_t r : routes) {
      const auto y = run_expert(params.experts[params.route_experts[r]], params, x);
      for (std::size_t i = 0; i < out.size(); ++i) {
        out[i] += params.route_weights[r] * y[i];
      }
    }
    write_row(params.out_rows[token], params.out_dtype, out);
  }
}

}  // namespace fastfd::kernels
