#pragma once

/// A layer's experts with random weights, tokens and routes, what launch_expert_gate_up and
/// launch_expert_down make of them, and the same by naive kernels in double.

#include <cuda_fp8.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "kernels/cuda/launch.cuh"
#include "kernels/expert_ffn/op_cuda.h"
#include "kernels/layout/row.h"
#include "tests/gpu/device_array.h"
#include "tests/gpu/random_data.cuh"

namespace fastfd::kernels::cuda {

using testing::DeviceArray;
using testing::fill_random;
using testing::relative_error;
using testing::require_cuda;

// --- A model of the layer: the same values as plain floats, and naive kernels in double.

/// Makes `real` and the float that it stands for; FP8: with the scales of 128x128 blocks (weights)
/// or 128 values (rows).
static __global__ void make_values_kernel(std::size_t num_values, std::uint64_t seed,
                                          float magnitude, std::int64_t columns, int rows_per_scale,
                                          bool scaled, void* real, const float* scales,
                                          float* meant) {
  const std::size_t stride = std::size_t{gridDim.x} * blockDim.x;
  for (std::size_t i = std::size_t{blockIdx.x} * blockDim.x + threadIdx.x; i < num_values;
       i += stride) {
    const float value = testing::random_value(seed, i);
    if (scaled) {
      const std::size_t row = i / columns;
      const float scale = scales[row / rows_per_scale * (columns / 128) + i % columns / 128];
      const __nv_fp8_e4m3 rounded(value * 400.0F);
      static_cast<__nv_fp8_e4m3*>(real)[i] = rounded;
      meant[i] = static_cast<float>(rounded) * scale;
    } else {
      const bf16 rounded = bf16::from_float(value * magnitude);
      static_cast<bf16*>(real)[i] = rounded;
      meant[i] = rounded.to_float();
    }
  }
}

__device__ inline double dot(const float* a, const float* b, std::int64_t k) {
  double sum = 0.0;
  for (std::int64_t i = 0; i < k; ++i) {
    sum += static_cast<double>(a[i]) * b[i];
  }
  return sum;
}

/// Block y is a route; its expert's weights are [2 * outputs, k] (gate/up) or [outputs, k].
static __global__ void naive_grouped_kernel(const float* rows, const std::uint32_t* route_rows,
                                            const std::uint32_t* route_experts,
                                            const float* weights, std::int64_t outputs,
                                            std::int64_t k, bool gate_up, float* results) {
  const std::int64_t output = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  const std::int64_t route = blockIdx.y;
  if (output >= outputs) {
    return;
  }
  const float* x = rows + (route_rows == nullptr ? route : std::int64_t{route_rows[route]}) * k;
  const float* w = weights + route_experts[route] * (gate_up ? 2 : 1) * outputs * k;
  double result = dot(x, w + output * k, k);
  if (gate_up) {
    result = result / (1.0 + exp(-result)) * dot(x, w + (outputs + output) * k, k);
  }
  results[route * outputs + output] = static_cast<float>(result);
}

struct Layer {
  std::int64_t num_experts;
  std::int64_t hidden_dim;
  std::int64_t intermediate_dim;
};

/// A matrix of the layer in its real form and as floats.
struct Values {
  Values(std::int64_t rows, std::int64_t columns, DType dtype, int rows_per_scale,
         std::uint64_t seed, float magnitude)
      : real(static_cast<std::size_t>(rows * columns) * dtype_bytes(dtype)),
        meant(static_cast<std::size_t>(rows * columns)),
        scales(static_cast<std::size_t>((rows + rows_per_scale - 1) / rows_per_scale *
                                        (columns / 128))) {
    const float scale = magnitude / 400.0F;
    EXPECT_TRUE(fill_random(scales.data(), scales.size(), seed + 1, scale * 0.5F, scale).is_ok());
    LaunchShape shape;
    shape.grid = dim3(meant.size() == 0 ? 0 : 512);
    shape.block = dim3(256);
    EXPECT_TRUE(launch(make_values_kernel, shape, nullptr, "make_values_kernel", meant.size(), seed,
                       magnitude, columns, rows_per_scale, dtype == DType::kFloat8E4M3, real.data(),
                       scales.data(), meant.data())
                    .is_ok());
  }
  DeviceArray<std::byte> real;
  DeviceArray<float> meant;
  DeviceArray<float> scales;
};

// --- Routing

enum class Routing { kUniform, kZipf, kAllToOne, kEveryOther };

struct Routes {
  std::vector<std::uint32_t> expert_begin;
  std::vector<std::uint32_t> tokens;
  std::vector<std::uint32_t> experts;
};

inline Routes make_routes(std::uint32_t num_tokens, int num_experts, int top_k, Routing routing) {
  std::mt19937 random(num_tokens * 31 + static_cast<unsigned>(top_k));
  std::vector<std::vector<std::uint32_t>> by_expert(static_cast<std::size_t>(num_experts));
  std::vector<double> weight(static_cast<std::size_t>(num_experts), 1.0);
  for (std::size_t expert = 0; expert < weight.size(); ++expert) {
    if (routing == Routing::kZipf) {
      weight[expert] = 1.0 / static_cast<double>(expert + 1);
    } else if (routing == Routing::kEveryOther) {
      weight[expert] = expert % 2 == 1 ? 1.0 : 0.0;
    }
  }
  std::discrete_distribution<std::size_t> draw(weight.begin(), weight.end());
  for (std::uint32_t token = 0; token < num_tokens; ++token) {
    for (int i = 0; i < top_k; ++i) {
      const std::size_t expert = routing == Routing::kAllToOne ? weight.size() - 1 : draw(random);
      auto& tokens = by_expert[expert];
      if (tokens.empty() || tokens.back() != token) {
        tokens.push_back(token);
      }
    }
  }
  Routes routes;
  routes.expert_begin.push_back(0);
  for (std::size_t expert = 0; expert < by_expert.size(); ++expert) {
    for (const std::uint32_t token : by_expert[expert]) {
      routes.tokens.push_back(token);
      routes.experts.push_back(static_cast<std::uint32_t>(expert));
    }
    routes.expert_begin.push_back(static_cast<std::uint32_t>(routes.tokens.size()));
  }
  return routes;
}

// --- A layer with tokens that lie in two windows, odd ones in the second.

class Problem {
 public:
  Problem(Layer layer, DType dtype, std::uint32_t num_tokens, const Routes& routes)
      : layer_(layer),
        dtype_(dtype),
        num_routes_(static_cast<std::int64_t>(routes.tokens.size())),
        tokens_(num_tokens, layer.hidden_dim, dtype, 1, 11, 1.0F),
        gate_up_(layer.num_experts * 2 * layer.intermediate_dim, layer.hidden_dim, dtype, 128, 22,
                 4.0F / std::sqrt(static_cast<float>(layer.hidden_dim))),
        down_(layer.num_experts * layer.hidden_dim, layer.intermediate_dim, dtype, 128, 33,
              4.0F / std::sqrt(static_cast<float>(layer.intermediate_dim))),
        windows_{DeviceArray<std::byte>(num_tokens * row().row_bytes()),
                 DeviceArray<std::byte>(num_tokens * row().row_bytes())},
        token_rows_(num_tokens),
        expert_begin_(routes.expert_begin),
        route_tokens_(routes.tokens),
        route_experts_(routes.experts) {
    std::vector<const void*> rows;
    for (std::uint32_t token = 0; token < num_tokens; ++token) {
      std::byte* to = row().row(windows_[token % 2].data(), token / 2);
      rows.push_back(to);
      require_cuda(cudaMemcpy(to, tokens_.real.data() + token * row().values_bytes(),
                              row().values_bytes(), cudaMemcpyDeviceToDevice),
                   "row");
      require_cuda(
          cudaMemcpy(to + row().scales_offset(), tokens_.scales.data() + token * row().num_scales(),
                     row().num_scales() * sizeof(float), cudaMemcpyDeviceToDevice),
          "scales");
    }
    token_rows_.put(rows);
  }

  layout::RowLayout row() const { return {static_cast<std::uint32_t>(layer_.hidden_dim), dtype_}; }
  std::int64_t num_routes() const { return num_routes_; }
  void set_routes(const Routes& routes) { expert_begin_.put(routes.expert_begin); }

  ExpertFfnParams params(std::int64_t max_routes) const {
    ExpertFfnParams params;
    params.num_experts = layer_.num_experts;
    params.hidden_dim = layer_.hidden_dim;
    params.intermediate_dim = layer_.intermediate_dim;
    params.max_routes = max_routes;
    params.routes.expert_begin = expert_begin_.data();
    params.routes.route_tokens = route_tokens_.data();
    params.weights.dtype = dtype_;
    params.weights.gate_up = gate_up_.real.data();
    params.weights.down = down_.real.data();
    params.weights.gate_up_scales = gate_up_.scales.data();
    params.weights.down_scales = down_.scales.data();
    params.token_rows = token_rows_.data();
    return params;
  }

  /// [num_routes, intermediate_dim]
  std::vector<float> reference_hidden() const {
    return naive(tokens_.meant.data(), route_tokens_.data(), gate_up_.meant.data(),
                 layer_.intermediate_dim, layer_.hidden_dim, true);
  }
  /// [num_routes, hidden_dim], of what the first GEMM really gave.
  std::vector<float> reference_outputs(const std::vector<float>& hidden) const {
    const DeviceArray<float> rows(hidden);
    return naive(rows.data(), nullptr, down_.meant.data(), layer_.hidden_dim,
                 layer_.intermediate_dim, false);
  }

 private:
  std::vector<float> naive(const float* rows, const std::uint32_t* route_rows, const float* weights,
                           std::int64_t outputs, std::int64_t k, bool gate_up) const {
    DeviceArray<float> results(static_cast<std::size_t>(num_routes_ * outputs));
    LaunchShape shape;
    shape.grid =
        dim3(static_cast<unsigned>((outputs + 127) / 128), static_cast<unsigned>(num_routes_));
    shape.block = dim3(128);
    EXPECT_TRUE(launch(naive_grouped_kernel, shape, nullptr, "naive_grouped_kernel", rows,
                       route_rows, route_experts_.data(), weights, outputs, k, gate_up,
                       results.data())
                    .is_ok());
    return results.get();
  }

  Layer layer_;
  DType dtype_;
  std::int64_t num_routes_;
  Values tokens_;
  Values gate_up_;
  Values down_;
  DeviceArray<std::byte> windows_[2];
  DeviceArray<const void*> token_rows_;
  DeviceArray<std::uint32_t> expert_begin_;
  DeviceArray<std::uint32_t> route_tokens_;
  DeviceArray<std::uint32_t> route_experts_;
};

struct Outcome {
  std::vector<float> hidden;        ///< [num_routes, intermediate_dim], with its scales applied
  std::vector<float> outputs;       ///< [num_routes, hidden_dim]
  std::vector<std::byte> all_bits;  ///< both as stored, for comparisons of runs
};

inline std::vector<float> floats_of(const std::vector<std::byte>& stored, DType dtype,
                                    std::size_t count) {
  std::vector<float> values(count);
  for (std::size_t i = 0; i < count; ++i) {
    const std::byte* from = stored.data() + i * dtype_bytes(dtype);
    if (dtype == DType::kFloat32) {
      std::memcpy(&values[i], from, sizeof(float));
    } else if (dtype == DType::kBFloat16) {
      bf16 value;
      std::memcpy(&value, from, sizeof(bf16));
      values[i] = value.to_float();
    } else {
      __nv_fp8_e4m3 value;
      std::memcpy(&value, from, 1);
      values[i] = static_cast<float>(value);
    }
  }
  return values;
}

inline Outcome run(const Problem& problem, std::int64_t max_routes,
                   DType output_dtype = DType::kFloat32, int num_ctas = 0) {
  ExpertFfnParams params = problem.params(max_routes);
  const DType dtype = params.weights.dtype;
  const auto hidden_values = static_cast<std::size_t>(max_routes * params.intermediate_dim);
  const auto output_values = static_cast<std::size_t>(max_routes * params.hidden_dim);
  DeviceArray<std::byte> hidden(hidden_values * dtype_bytes(dtype));
  DeviceArray<float> hidden_scales(hidden_values / 128);
  DeviceArray<std::byte> outputs(output_values * dtype_bytes(output_dtype));
  params.hidden = hidden.data();
  params.hidden_scales = hidden_scales.data();
  params.route_outputs = outputs.data();
  params.output_dtype = output_dtype;
  params.num_ctas = num_ctas;
  const Status first = launch_expert_gate_up(params, nullptr);
  EXPECT_TRUE(first.is_ok()) << first.message();
  const Status second = launch_expert_down(params, nullptr);
  EXPECT_TRUE(second.is_ok()) << second.message();

  Outcome outcome;
  const auto routes = static_cast<std::size_t>(problem.num_routes());
  const auto stored_hidden = hidden.get();
  const auto stored_outputs = outputs.get();
  const auto scales = hidden_scales.get();
  const std::size_t hidden_count = routes * static_cast<std::size_t>(params.intermediate_dim);
  const std::size_t output_count = routes * static_cast<std::size_t>(params.hidden_dim);
  outcome.hidden = floats_of(stored_hidden, dtype, hidden_count);
  if (dtype == DType::kFloat8E4M3) {
    for (std::size_t i = 0; i < hidden_count; ++i) {
      outcome.hidden[i] *= scales[i / 128];
    }
  }
  outcome.outputs = floats_of(stored_outputs, output_dtype, output_count);
  const std::size_t hidden_bytes = hidden_count * dtype_bytes(dtype);
  const std::size_t output_bytes = output_count * dtype_bytes(output_dtype);
  const auto untouched = [](std::byte value) { return value == std::byte{0xff}; };
  EXPECT_TRUE(std::all_of(stored_hidden.begin() + static_cast<std::ptrdiff_t>(hidden_bytes),
                          stored_hidden.end(), untouched));
  EXPECT_TRUE(std::all_of(stored_outputs.begin() + static_cast<std::ptrdiff_t>(output_bytes),
                          stored_outputs.end(), untouched));
  outcome.all_bits.assign(stored_hidden.begin(),
                          stored_hidden.begin() + static_cast<std::ptrdiff_t>(hidden_bytes));
  outcome.all_bits.insert(outcome.all_bits.end(), stored_outputs.begin(),
                          stored_outputs.begin() + static_cast<std::ptrdiff_t>(output_bytes));
  return outcome;
}

}  // namespace fastfd::kernels::cuda
