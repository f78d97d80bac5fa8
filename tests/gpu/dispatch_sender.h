#pragma once

/// An attention server in front of launch_dispatch, with the windows of all its peers in the same
/// process, and what a test may ask it to send.

#include <algorithm>
#include <optional>
#include <ostream>
#include <utility>

#include "fastfd/core/expert_placement.h"
#include "gpu/moe_support.h"
#include "kernels/dispatch/op_cuda.h"
#include "kernels/norm/op.h"

namespace fastfd::testing {

using kernels::cuda::DispatchCounters;
using kernels::cuda::DispatchParams;
using kernels::cuda::RouterScoring;

/// What one test dispatches.
struct DispatchCase {
  std::uint32_t num_rows = 1;
  std::uint32_t max_rows = 16;
  std::uint32_t hidden_dim = 256;
  std::uint32_t num_experts = 16;
  std::uint32_t top_k = 2;
  std::uint32_t num_servers = 1;
  DType dtype = DType::kBFloat16;
  DType norm_dtype = DType::kBFloat16;
  RouterScoring scoring = RouterScoring::kSoftmax;
  bool renormalize = true;
  float scaling_factor = 1.0F;
  bool has_bias = false;
  std::uint32_t num_groups = 1;
  std::uint32_t top_groups = 1;
  kernels::GroupScore group_score = kernels::GroupScore::kMax;
  enum Routing { kRandom, kOneExpert, kZipf } routing = kRandom;
};

inline void PrintTo(const DispatchCase& c, std::ostream* out) {
  *out << c.num_rows << " of " << c.max_rows << " rows, hidden " << c.hidden_dim << ", "
       << c.num_experts << " experts, top " << c.top_k << ", " << c.num_servers << " servers, "
       << to_string(c.dtype) << ", scoring " << static_cast<int>(c.scoring) << ", routing "
       << c.routing;
}

/// An attention server with the windows of all its peers.
class Sender {
 public:
  explicit Sender(const DispatchCase& shape, std::uint32_t seed = 1)
      : case_(shape),
        row_{shape.hidden_dim, shape.dtype},
        layout_(
            layout::DispatchLayout::make({shape.max_rows + 3, row_.row_bytes(), shape.top_k + 1})),
        placement_(ExpertPlacement::contiguous(shape.num_experts, shape.num_servers, 1)),
        windows_(shape.num_servers, layout_.grid),
        residual_(random_floats(std::size_t{shape.max_rows} * shape.hidden_dim, seed, 2.0F, 0.3F)),
        norm_(to_bf16(random_floats(shape.hidden_dim, seed + 1, 0.3F, 1.0F))),
        router_(to_bf16(random_floats(std::size_t{shape.num_experts} * shape.hidden_dim, seed + 2,
                                      1.0F / std::sqrt(static_cast<float>(shape.hidden_dim))))),
        device_residual_(residual_),
        device_norm_(norm_),
        device_float_norm_(to_floats(norm_)),
        targets_(shape.num_experts),
        row_index_(std::size_t{shape.num_servers} * shape.max_rows),
        sent_rows_(shape.num_servers),
        normed_(std::size_t{shape.max_rows} * shape.hidden_dim),
        experts_(std::size_t{shape.max_rows} * shape.top_k),
        weights_(std::size_t{shape.max_rows} * shape.top_k),
        partial_(kernels::cuda::router_scratch_floats(shape.max_rows, shape.num_experts,
                                                      shape.hidden_dim)) {
    skew();
    device_router_.emplace(router_);
    device_bias_.emplace(bias_);
    std::vector<ExpertPlacement::Target> targets;
    for (std::uint32_t expert = 0; expert < shape.num_experts; ++expert) {
      targets.push_back(placement_.target(expert, /*attention_rank=*/0));
    }
    targets_.put(targets);
  }

  DispatchParams params() {
    control_.num_rows = case_.num_rows;
    device_control_.put(control_);
    DispatchParams params;
    params.control = device_control_.data();
    params.hop = kTestHop;
    params.max_rows = case_.max_rows;
    params.hidden_dim = case_.hidden_dim;
    params.residual = device_residual_.data();
    params.norm = {.values = device_norm_.data(), .dtype = case_.norm_dtype, .eps = 1e-5F};
    if (case_.norm_dtype == DType::kFloat32) {
      params.norm.values = device_float_norm_.data();
    }
    params.router = {.scoring = case_.scoring,
                     .num_experts = case_.num_experts,
                     .top_k = case_.top_k,
                     .renormalize = case_.renormalize,
                     .scaling_factor = case_.scaling_factor,
                     .num_groups = case_.num_groups,
                     .top_groups = case_.top_groups,
                     .group_score = case_.group_score,
                     .weights = device_router_->data(),
                     .correction_bias = case_.has_bias ? device_bias_->data() : nullptr};
    params.placement = targets_.data();
    params.windows = windows_.pointers();
    params.num_servers = case_.num_servers;
    params.window = layout_;
    params.row = row_;
    params.row_index = row_index_.data();
    params.sent_rows = sent_rows_.data();
    params.normed = normed_.data();
    params.experts = experts_.data();
    params.weights = weights_.data();
    params.partial_logits = partial_.data();
    params.counters = counters_.data();
    params.abort = abort_.data();
    return params;
  }

  void run() { run(params()); }
  void run(const DispatchParams& params) {
    const Status status = launch_dispatch(params, stream_);
    ASSERT_TRUE(status) << status.to_string();
    stream_.wait();
  }

  /// Normalised rows in float, by the CPU reference.
  std::vector<float> reference_normed() const {
    std::vector<float> normed(std::size_t{case_.num_rows} * case_.hidden_dim);
    const std::vector<float> norm = to_floats(norm_);
    kernels::reference_rms_norm({.num_rows = case_.num_rows,
                                 .dim = case_.hidden_dim,
                                 .x = residual_.data(),
                                 .weight = norm.data(),
                                 .y = normed.data(),
                                 .eps = 1e-5F});
    return normed;
  }

  /// Scores of a row by expert in double: what is compared to choose, and what weighs.
  std::pair<std::vector<double>, std::vector<double>> reference_scores(const float* normed) const {
    std::vector<double> scores(case_.num_experts);
    for (std::uint32_t e = 0; e < case_.num_experts; ++e) {
      for (std::uint32_t i = 0; i < case_.hidden_dim; ++i) {
        scores[e] += static_cast<double>(normed[i]) *
                     router_[std::size_t{e} * case_.hidden_dim + i].to_float();
      }
    }
    const double largest = *std::max_element(scores.begin(), scores.end());
    double total = 0.0;
    for (double& score : scores) {
      const bool softmax = case_.scoring == RouterScoring::kSoftmax;
      score = softmax ? std::exp(score - largest) : 1.0 / (1.0 + std::exp(-score));
      total += score;
    }
    std::vector<double> choice(case_.num_experts);
    for (std::uint32_t e = 0; e < case_.num_experts; ++e) {
      scores[e] /= case_.scoring == RouterScoring::kSoftmax ? total : 1.0;
      choice[e] = scores[e] + (case_.has_bias ? bias_[e] : 0.0F);
    }
    return {choice, scores};
  }

  const DispatchCase& shape() const { return case_; }

  DispatchCase case_;
  layout::RowLayout row_;
  layout::DispatchLayout layout_;
  ExpertPlacement placement_;
  Windows windows_;
  layout::LaneControl control_ = test_control();
  std::vector<float> residual_;
  std::vector<bf16> norm_;
  std::vector<bf16> router_;
  std::vector<float> bias_;

  DeviceArray<float> device_residual_;
  DeviceArray<bf16> device_norm_;
  DeviceArray<float> device_float_norm_;
  std::optional<DeviceArray<bf16>> device_router_;
  std::optional<DeviceArray<float>> device_bias_;
  DeviceArray<ExpertPlacement::Target> targets_;
  DeviceArray<std::int32_t> row_index_;
  DeviceArray<std::uint32_t> sent_rows_;
  DeviceArray<bf16> normed_;
  DeviceArray<std::int32_t> experts_;
  DeviceArray<float> weights_;
  DeviceArray<float> partial_;
  DeviceValue<DispatchCounters> counters_{DispatchCounters{}};
  DeviceValue<layout::LaneControl> device_control_;
  DeviceValue<layout::AbortState> abort_;
  TestStream stream_;

 private:
  void skew() {
    bias_ = random_floats(case_.num_experts, 9, 0.3F);
    if (case_.routing == DispatchCase::kOneExpert) {
      // The residual's mean is above 0, so a constant row of weights wins.
      const std::uint32_t winner = case_.num_experts / 2;
      for (std::uint32_t e = 0; e < case_.num_experts; ++e) {
        for (std::uint32_t i = 0; i < case_.hidden_dim; ++i) {
          bf16& weight = router_[std::size_t{e} * case_.hidden_dim + i];
          weight = bf16::from_float(e == winner ? 0.5F : 0.05F * weight.to_float());
        }
      }
      for (float& value : residual_) {
        value += 3.0F;
      }
      device_residual_.put(residual_);
    } else if (case_.routing == DispatchCase::kZipf) {
      for (std::uint32_t e = 0; e < case_.num_experts; ++e) {
        bias_[e] = 2.0F / static_cast<float>(e + 1);
      }
    }
  }
};

}  // namespace fastfd::testing
