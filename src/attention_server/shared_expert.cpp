#include "attention_server/shared_expert.h"

#include <cmath>
#include <numeric>

#include "kernels/gemm/op.h"
#include "kernels/norm/op.h"

namespace fastfd::attention_server {

SharedExpert::SharedExpert(const AttentionServerOptions& options, const model::ModelSpec& spec)
    : options_(options),
      hidden_dim_(spec.hidden_dim),
      intermediate_dim_(spec.shared_intermediate_dim) {
  if (intermediate_dim_ == 0) {
    return;
  }
  const std::size_t rows = options.max_lane_rows;
  route_offsets_.resize(rows + 1);
  std::iota(route_offsets_.begin(), route_offsets_.end(), 0U);
  route_experts_.assign(rows, 0);
  route_weights_.assign(rows, 1.0F);
  in_rows_.resize(rows);
  out_.resize(rows * hidden_dim_);
  for (std::size_t row = 0; row < rows; ++row) {
    out_rows_.push_back(&out_[row * hidden_dim_]);
  }
}

Status SharedExpert::weigh(const model::SharedExpertWeights& weights, std::uint32_t num_rows,
                           const float* normed, const device::CpuStream& stream) {
  if (weights.gate.n() == 0) {
    return Status::ok();
  }
  auto status = kernels::launch_gemm({.m = num_rows,
                                      .a = normed,
                                      .lda = hidden_dim_,
                                      .weights = &weights.gate,
                                      .c = route_weights_.data(),
                                      .ldc = 1,
                                      .precision = options_.precision},
                                     stream);
  for (std::uint32_t row = 0; row < num_rows; ++row) {
    route_weights_[row] = 1.0F / (1.0F + std::exp(-route_weights_[row]));
  }
  return status;
}

Status SharedExpert::run(const model::SharedExpertWeights& weights, std::uint32_t num_rows,
                         const float* normed, float* residual, const device::CpuStream& stream,
                         const std::atomic<bool>* abort) {
  for (std::size_t row = 0; row < num_rows; ++row) {
    in_rows_[row] = normed + row * hidden_dim_;
  }
  auto status = weigh(weights, num_rows, normed, stream);
  if (status) {
    status = kernels::launch_expert_ffn({.num_tokens = num_rows,
                                         .hidden_dim = hidden_dim_,
                                         .intermediate_dim = intermediate_dim_,
                                         .token_rows = in_rows_.data(),
                                         .route_offsets = route_offsets_.data(),
                                         .route_experts = route_experts_.data(),
                                         .route_weights = route_weights_.data(),
                                         .experts = std::span(&weights.expert, 1),
                                         .out_rows = out_rows_.data(),
                                         .precision = options_.precision,
                                         .abort = abort},
                                        scratch_, stream);
  }
  if (status) {
    status = kernels::launch_combine_norm({.num_rows = num_rows,
                                           .dim = hidden_dim_,
                                           .residual = residual,
                                           .num_ranks = 1,
                                           .partials = out_rows_.data(),
                                           .weight = nullptr},
                                          stream);
  }
  return status;
}

}  // namespace fastfd::attention_server
