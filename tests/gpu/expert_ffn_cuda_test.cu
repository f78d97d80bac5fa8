#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <string>
#include <tuple>
#include <vector>

#include "kernels/expert_ffn/op_cuda.h"
#include "tests/gpu/device_array.h"
#include "tests/gpu/expert_ffn_problem.cuh"

namespace fastfd::kernels::cuda {
namespace {

/// The largest magnitude of each group of 128 is stored exactly but for the rounding of its scale.
void expect_scales_from_largest(const std::vector<float>& hidden,
                                const std::vector<float>& expected) {
  for (std::size_t group = 0; group < hidden.size() / 128; ++group) {
    float largest = 0.0F;
    float expected_largest = 0.0F;
    for (std::size_t i = group * 128; i < (group + 1) * 128; ++i) {
      largest = std::max(largest, std::abs(hidden[i]));
      expected_largest = std::max(expected_largest, std::abs(expected[i]));
    }
    ASSERT_NEAR(largest, expected_largest, 5e-3F * expected_largest) << "group " << group;
  }
}

void expect_matches(const Problem& problem, DType dtype, const Outcome& outcome,
                    DType output_dtype) {
  const bool scaled = dtype == DType::kFloat8E4M3;
  const auto expected_hidden = problem.reference_hidden();
  EXPECT_LT(relative_error(outcome.hidden, expected_hidden), scaled ? 4e-2 : 5e-3);
  if (scaled) {
    expect_scales_from_largest(outcome.hidden, expected_hidden);
  }
  const double bound = output_dtype == DType::kBFloat16 ? 5e-3 : scaled ? 2e-3 : 1e-5;
  EXPECT_LT(relative_error(outcome.outputs, problem.reference_outputs(outcome.hidden)), bound);
}

class ExpertFfnCuda : public ::testing::TestWithParam<std::tuple<DType, Routing, int>> {};

TEST_P(ExpertFfnCuda, EveryRouteMatchesTheNaiveExpert) {
  const auto [dtype, routing, num_tokens] = GetParam();
  constexpr int kTopK = 2;
  for (const Layer layer : {Layer{5, 384, 128}, Layer{8, 128, 768}, Layer{1, 256, 256}}) {
    const auto routes = make_routes(static_cast<std::uint32_t>(num_tokens),
                                    static_cast<int>(layer.num_experts), kTopK, routing);
    const Problem problem(layer, dtype, static_cast<std::uint32_t>(num_tokens), routes);
    const std::int64_t bucket = std::max(num_tokens, 1) * kTopK;
    for (const DType output_dtype : {DType::kFloat32, DType::kBFloat16}) {
      const auto outcome = run(problem, bucket, output_dtype);
      expect_matches(problem, dtype, outcome, output_dtype);
    }
  }
}

std::string case_name(const ::testing::TestParamInfo<std::tuple<DType, Routing, int>>& info) {
  const auto [dtype, routing, num_tokens] = info.param;
  constexpr const char* kNames[] = {"Uniform", "Zipf", "AllToOne", "EveryOther"};
  return std::string(dtype == DType::kBFloat16 ? "bf16" : "fp8") +
         kNames[static_cast<int>(routing)] + std::to_string(num_tokens);
}

INSTANTIATE_TEST_SUITE_P(Routings, ExpertFfnCuda,
                         ::testing::Combine(::testing::Values(DType::kBFloat16, DType::kFloat8E4M3),
                                            ::testing::Values(Routing::kUniform, Routing::kZipf,
                                                              Routing::kAllToOne,
                                                              Routing::kEveryOther),
                                            ::testing::Values(0, 1, 3, 16, 33, 130, 515)),
                         case_name);

class ExpertFfnCudaTypes : public ::testing::TestWithParam<DType> {};

TEST_P(ExpertFfnCudaTypes, TheShapeOfARealModelMatches) {
  constexpr Layer kQwen{32, 2048, 768};
  const auto routes = make_routes(100, 32, 8, Routing::kZipf);
  const Problem problem(kQwen, GetParam(), 100, routes);
  expect_matches(problem, GetParam(), run(problem, 800), DType::kFloat32);
}

TEST_P(ExpertFfnCudaTypes, BitsDependNeitherOnTheBucketNorOnTheBlocks) {
  constexpr Layer kLayer{7, 1024, 384};
  const auto routes = make_routes(40, 7, 3, Routing::kZipf);
  const Problem problem(kLayer, GetParam(), 40, routes);
  const auto expected = run(problem, 120).all_bits;  // 17 routes an expert
  for (const std::int64_t bucket : {std::int64_t{1000}, problem.num_routes()}) {
    EXPECT_EQ(run(problem, bucket).all_bits, expected) << "bucket " << bucket;
  }
  EXPECT_EQ(run(problem, 120, DType::kFloat32, 1).all_bits, expected);
  EXPECT_EQ(run(problem, 120, DType::kFloat32, 5).all_bits, expected);
}

TEST_P(ExpertFfnCudaTypes, ATokensBitsDependOnNobodyElse) {
  constexpr Layer kLayer{3, 512, 256};
  const auto many = make_routes(90, 3, 1, Routing::kAllToOne);
  const Problem crowd(kLayer, GetParam(), 90, many);
  const auto among_others = run(crowd, 270);
  Routes alone = many;
  alone.expert_begin = {0, 0, 0, 1};
  alone.tokens = {41};
  alone.experts = {2};
  const Problem single(kLayer, GetParam(), 90, alone);
  const auto by_itself = run(single, 1);  // the tile for few tokens
  const auto row = among_others.outputs.begin() + 41 * kLayer.hidden_dim;
  EXPECT_TRUE(std::equal(by_itself.outputs.begin(), by_itself.outputs.end(), row));
}

TEST_P(ExpertFfnCudaTypes, AReplayReadsTheCountsFromTheDevice) {
  constexpr Layer kLayer{4, 256, 128};
  const auto routes = make_routes(20, 4, 2, Routing::kUniform);
  Problem problem(kLayer, GetParam(), 20, routes);
  ExpertFfnParams params = problem.params(40);
  DeviceArray<std::byte> hidden(static_cast<std::size_t>(40 * 128 * 2));
  DeviceArray<float> scales(40);
  DeviceArray<float> outputs(static_cast<std::size_t>(40 * 256));
  params.hidden = hidden.data();
  params.hidden_scales = scales.data();
  params.route_outputs = outputs.data();
  params.output_dtype = DType::kFloat32;
  cudaStream_t stream = nullptr;
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
  require_cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "stream");
  require_cuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), "capture");
  const Status first = launch_expert_gate_up(params, stream);
  const Status second = launch_expert_down(params, stream);
  require_cuda(cudaStreamEndCapture(stream, &graph), "capture");
  ASSERT_TRUE(first.is_ok() && second.is_ok()) << first.message() << second.message();
  require_cuda(cudaGraphInstantiate(&executable, graph, 0), "instantiate");
  const auto expected = run(problem, 40).outputs;
  Routes part = routes;  // the last expert has lost its routes
  part.expert_begin[4] = part.expert_begin[3];
  for (const Routes* now : std::initializer_list<const Routes*>{&part, &routes}) {
    require_cuda(cudaMemset(outputs.data(), 0xff, outputs.num_bytes()), "poison");
    problem.set_routes(*now);
    require_cuda(cudaDeviceSynchronize(), "inputs");
    require_cuda(cudaGraphLaunch(executable, stream), "replay");
    const auto stored = outputs.get();
    const auto written = static_cast<std::ptrdiff_t>(now->expert_begin[4]) * 256;
    EXPECT_TRUE(std::equal(stored.begin(), stored.begin() + written, expected.begin()));
    EXPECT_TRUE(std::all_of(stored.begin() + written, stored.end(),
                            [](float value) { return std::isnan(value); }));
  }
  cudaGraphExecDestroy(executable);
  cudaGraphDestroy(graph);
  cudaStreamDestroy(stream);
}

TEST_P(ExpertFfnCudaTypes, WhatDoesNotFitIsRefused) {
  const auto routes = make_routes(1, 1, 1, Routing::kUniform);
  const Problem problem({1, 128, 128}, GetParam(), 1, routes);
  ExpertFfnParams params = problem.params(1);
  params.intermediate_dim = 192;
  EXPECT_EQ(launch_expert_gate_up(params, nullptr).code(), StatusCode::kInvalidArgument);
  params.intermediate_dim = 128;
  params.weights.dtype = DType::kFloat16;
  EXPECT_EQ(launch_expert_gate_up(params, nullptr).code(), StatusCode::kInvalidArgument);
  params.weights.dtype = GetParam();
  params.output_dtype = DType::kFloat16;
  EXPECT_EQ(launch_expert_down(params, nullptr).code(), StatusCode::kInvalidArgument);
  params.output_dtype = DType::kFloat32;
  params.num_experts = kMaxLocalExperts + 1;
  EXPECT_EQ(launch_expert_down(params, nullptr).code(), StatusCode::kInvalidArgument);
}

INSTANTIATE_TEST_SUITE_P(Types, ExpertFfnCudaTypes,
                         ::testing::Values(DType::kBFloat16, DType::kFloat8E4M3),
                         [](const auto& info) {
                           return std::string(info.param == DType::kBFloat16 ? "bf16" : "fp8");
                         });

}  // namespace
}  // namespace fastfd::kernels::cuda
