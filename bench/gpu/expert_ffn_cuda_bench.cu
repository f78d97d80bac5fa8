/// The experts of one layer of Qwen3-30B-A3B on one FFN server: gate/up, down, and both, with the
/// floor that bytes and arithmetic set.

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <random>
#include <set>
#include <vector>

#include "bench/gpu/timing.cuh"
#include "kernels/expert_ffn/op_cuda.h"
#include "kernels/layout/row.h"
#include "tests/gpu/device_array.h"
#include "tests/gpu/random_data.cuh"

namespace fastfd::bench {
namespace {

using kernels::cuda::ExpertFfnParams;
using testing::DeviceArray;
using testing::fill_random;

constexpr std::int64_t kHidden = 2048;
constexpr std::int64_t kIntermediate = 768;
constexpr int kExperts = 128;
constexpr int kTopK = 8;

/// Every token to kTopK different experts, uniformly.
struct Routes {
  std::vector<std::uint32_t> expert_begin{0};
  std::vector<std::uint32_t> tokens;
  int experts_used = 0;
};

Routes draw_routes(int num_tokens) {
  std::mt19937 random(7);
  std::vector<std::vector<std::uint32_t>> by_expert(kExperts);
  for (int token = 0; token < num_tokens; ++token) {
    std::set<std::uint32_t> chosen;
    while (static_cast<int>(chosen.size()) < kTopK) {
      chosen.insert(static_cast<std::uint32_t>(random() % kExperts));
    }
    for (const std::uint32_t expert : chosen) {
      by_expert[expert].push_back(static_cast<std::uint32_t>(token));
    }
  }
  Routes routes;
  for (const auto& tokens : by_expert) {
    routes.tokens.insert(routes.tokens.end(), tokens.begin(), tokens.end());
    routes.expert_begin.push_back(static_cast<std::uint32_t>(routes.tokens.size()));
    routes.experts_used += tokens.empty() ? 0 : 1;
  }
  return routes;
}

/// Random e4m3 bits without NaN: |value| < 2. As `fill_random`.
__global__ void fill_fp8_kernel(std::uint8_t* values, std::size_t num_values, std::uint64_t seed) {
  const std::size_t stride = std::size_t{gridDim.x} * blockDim.x;
  for (std::size_t i = std::size_t{blockIdx.x} * blockDim.x + threadIdx.x; i < num_values;
       i += stride) {
    const auto bits =
        static_cast<std::uint32_t>(testing::random_value(seed, i) * 8388608.0F + 8388608.0F);
    values[i] = static_cast<std::uint8_t>((bits & 0x80U) | (bits >> 8) % 0x40U);
  }
}

void fill(DeviceArray<std::byte>& values, DType dtype, std::uint64_t seed) {
  if (dtype == DType::kBFloat16) {
    require(fill_random(reinterpret_cast<bf16*>(values.data()), values.size() / 2, seed, 0.1F));
    return;
  }
  kernels::cuda::LaunchShape shape;
  shape.grid = dim3(1024);
  shape.block = dim3(256);
  require(kernels::cuda::launch(fill_fp8_kernel, shape, nullptr, "fill_fp8_kernel",
                                reinterpret_cast<std::uint8_t*>(values.data()), values.size(),
                                seed));
}

void print(const char* what, DType dtype, int num_tokens, double time, double bytes, double flops) {
  const double floor = floor_microseconds(
      bytes, flops, dtype == DType::kBFloat16 ? kBf16FlopsPerSecond : kFp8FlopsPerSecond);
  std::printf(
      "%-8s %-11s tokens %4d  %8.2f us  floor %7.2f us  ratio %5.2f  %6.1f GB/s  %6.1f "
      "TFLOP/s\n",
      what, to_string(dtype), num_tokens, time, floor, time / floor, bytes / time * 1e-3,
      flops / time * 1e-6);
}

void run(DType dtype, int num_tokens) {
  constexpr int kLayers = 2;  // in turns: together far more than the cache holds
  constexpr std::size_t kMatrix = std::size_t{kExperts} * kHidden * kIntermediate;
  const std::size_t value_bytes = dtype_bytes(dtype);
  const layout::RowLayout row{kHidden, dtype};
  const Routes routes = draw_routes(num_tokens);
  const std::int64_t num_routes = static_cast<std::int64_t>(routes.tokens.size());
  DeviceArray<std::byte> gate_up(kLayers * 2 * kMatrix * value_bytes);
  DeviceArray<std::byte> down(kLayers * kMatrix * value_bytes);
  DeviceArray<float> scales(2 * kMatrix / (128 * 128));
  DeviceArray<std::byte> rows(static_cast<std::size_t>(num_tokens) * row.row_bytes());
  DeviceArray<std::byte> hidden(static_cast<std::size_t>(num_routes * kIntermediate) * value_bytes);
  DeviceArray<float> hidden_scales(static_cast<std::size_t>(num_routes * kIntermediate / 128));
  DeviceArray<bf16> outputs(static_cast<std::size_t>(num_routes * kHidden));
  DeviceArray<std::uint32_t> expert_begin(routes.expert_begin);
  DeviceArray<std::uint32_t> route_tokens(routes.tokens);
  DeviceArray<const void*> token_rows(static_cast<std::size_t>(num_tokens));
  fill(gate_up, dtype, 1);
  fill(down, dtype, 2);
  fill(rows, dtype, 3);
  require(fill_random(scales.data(), scales.size(), 4, 0.01F, 0.02F));
  std::vector<const void*> pointers;
  for (int token = 0; token < num_tokens; ++token) {
    std::byte* to = row.row(rows.data(), static_cast<std::uint32_t>(token));
    pointers.push_back(to);
    if (dtype == DType::kFloat8E4M3) {
      require(fill_random(row.scales(to), row.num_scales(), 5, 0.1F, 0.2F));
    }
  }
  token_rows.put(pointers);

  ExpertFfnParams params;
  params.num_experts = kExperts;
  params.hidden_dim = kHidden;
  params.intermediate_dim = kIntermediate;
  params.max_routes = num_routes;
  params.routes.expert_begin = expert_begin.data();
  params.routes.route_tokens = route_tokens.data();
  params.weights.dtype = dtype;
  params.weights.gate_up_scales = scales.data();
  params.weights.down_scales = scales.data();
  params.token_rows = token_rows.data();
  params.hidden = hidden.data();
  params.hidden_scales = hidden_scales.data();
  params.route_outputs = outputs.data();
  const auto time_of = [&](bool with_gate_up, bool with_down) {
    return median_microseconds(2 * kLayers, [&](int i, cudaStream_t stream) {
      params.weights.gate_up = gate_up.data() + i % kLayers * 2 * kMatrix * value_bytes;
      params.weights.down = down.data() + i % kLayers * kMatrix * value_bytes;
      if (with_gate_up) {
        require(launch_expert_gate_up(params, stream));
      }
      if (with_down) {
        require(launch_expert_down(params, stream));
      }
    });
  };
  const double matrix_bytes = static_cast<double>(routes.experts_used) * kHidden * kIntermediate *
                              static_cast<double>(value_bytes);
  const double matrix_flops = 2.0 * static_cast<double>(num_routes) * kHidden * kIntermediate;
  const double row_bytes = static_cast<double>(num_tokens) * row.row_bytes();
  const double hidden_bytes =
      static_cast<double>(num_routes * kIntermediate) * static_cast<double>(value_bytes);
  const double output_bytes = 2.0 * static_cast<double>(num_routes) * kHidden;
  const double up_bytes = 2 * matrix_bytes + row_bytes + hidden_bytes;
  const double down_bytes = matrix_bytes + hidden_bytes + output_bytes;
  print("gate/up", dtype, num_tokens, time_of(true, false), up_bytes, 2 * matrix_flops);
  print("down", dtype, num_tokens, time_of(false, true), down_bytes, matrix_flops);
  print("both", dtype, num_tokens, time_of(true, true), up_bytes + down_bytes, 3 * matrix_flops);
}

}  // namespace
}  // namespace fastfd::bench

int main() {
  for (const auto dtype : {fastfd::DType::kBFloat16, fastfd::DType::kFloat8E4M3}) {
    for (const int num_tokens : {1, 16, 64, 256, 1024, 4096}) {
      fastfd::bench::run(dtype, num_tokens);
    }
  }
  return 0;
}
