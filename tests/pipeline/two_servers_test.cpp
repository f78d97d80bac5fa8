// The smallest cluster: one attention server, one FFN server, and plans written by hand. Without
// a scheduler, so that a wrong token here is the servers' or the kernels' fault.

#include <gtest/gtest.h>

#include <cmath>

#include "fastfd/attention_server/attention_server.h"
#include "fastfd/core/blocking_queue.h"
#include "fastfd/ffn_server/ffn_server.h"
#include "fastfd/transport/inproc.h"
#include "support/golden.h"

namespace fastfd {
namespace {

using namespace std::chrono_literals;

const std::filesystem::path kModelDir =
    std::filesystem::path(FASTFD_SOURCE_DIR) / "models" / "atlas-moe";
constexpr std::uint32_t kPageSize = 16;
constexpr std::uint32_t kMaxRows = 1024;

class TwoServersTest : public ::testing::TestWithParam<Precision> {
 protected:
  TwoServersTest() {
    const auto placement = ExpertPlacement::contiguous(spec_.num_experts, 1, 1);
    const bool exact = GetParam() == Precision::kFloat32;
    const transport::WindowShape shape{.max_lane_rows = kMaxRows,
                                       .hidden_dim = spec_.hidden_dim,
                                       .max_routes_per_row = spec_.experts_per_token,
                                       .num_layers = spec_.num_layers,
                                       .dispatch_dtype = exact ? DType::kFloat32 : DType::kBFloat16,
                                       .combine_dtype = DType::kFloat32};
    fabric_ = std::make_unique<transport::InprocFabric>(shape, 1, 1, transport::WaitPolicy{0});
    attention_ = std::make_unique<attention_server::AttentionServer>(
        attention_server::AttentionServerOptions{
            .precision = GetParam(),
            .dispatch_dtype = shape.dispatch_dtype,
            .num_pages = 256,
            .page_size = kPageSize,
            .kv_dtype = exact ? DType::kFloat32 : DType::kBFloat16,
            .num_slots = 4,
            .max_lane_rows = kMaxRows},
        spec_,
        std::make_shared<model::AttentionWeights>(model::load_attention_weights(kModelDir, spec_)),
        [this](LaneResult result) { results_.push(std::move(result)); },
        [this](const Status& status) {
          ADD_FAILURE() << status.to_string();
          results_.close();
        });
    ffn_ = std::make_unique<ffn_server::FfnServer>(
        ffn_server::FfnServerOptions{.precision = GetParam(),
                                     .dispatch_dtype = shape.dispatch_dtype,
                                     .max_lane_rows = kMaxRows},
        spec_,
        std::make_shared<model::FfnWeights>(
            model::load_ffn_weights(kModelDir, spec_, placement, 0)),
        [this](const Status& status) {
          ADD_FAILURE() << status.to_string();
          results_.close();
        });
    attention_->begin_epoch(1, fabric_->attention_port(0), placement);
    ffn_->begin_epoch(1, fabric_->ffn_port(0));
  }

  std::optional<SampledToken> run(AttentionLanePlan lane) {
    ++step_;
    lane.participants = 1;
    FfnStepPlan ffn;
    ffn.epoch = 1;
    ffn.step = step_;
    ffn.lanes.emplace_back().participants = 1;
    AttentionStepPlan plan;
    plan.epoch = 1;
    plan.step = step_;
    plan.lanes.push_back(std::move(lane));
    ffn_->submit_plan(ffn);
    attention_->submit_plan(plan);
    const auto result = results_.pop_until(std::chrono::steady_clock::now() + 60s);
    if (!result || result->tokens.size() != 1) {
      return std::nullopt;
    }
    return result->tokens[0];
  }

  // Greedy tokens of one prompt, with the log-probabilities of the 8 likeliest.
  std::vector<SampledToken> generate(const testing::GoldenPrompt& prompt) {
    std::vector<SampledToken> tokens;
    AttentionLanePlan first;
    first.num_rows = static_cast<std::uint32_t>(prompt.prompt_ids.size());
    SlotOpen& open = first.opens.emplace_back();
    open.generation = ++generation_;
    open.prompt_len = first.num_rows;
    open.sampling.temperature = 0.0F;
    open.sampling.num_logprobs = 8;
    PrefillPiece& piece = first.pieces.emplace_back();
    piece.generation = open.generation;
    piece.tokens = prompt.prompt_ids;
    piece.samples = true;
    if (in_flight_) {
      first.leaves = {0};
    }
    in_flight_ = true;
    PageId next_page = 0;
    while (next_page * kPageSize < first.num_rows) {
      piece.new_pages.push_back(next_page++);
    }
    std::uint32_t length = first.num_rows;
    auto token = run(std::move(first));
    while (token) {
      tokens.push_back(*token);
      if (tokens.size() == prompt.output_ids.size()) {
        break;
      }
      AttentionLanePlan decode;
      decode.num_rows = 1;
      if (length++ == next_page * kPageSize) {
        decode.pages.push_back({.slot = 0, .page = next_page++});
      }
      token = run(std::move(decode));
    }
    return tokens;
  }

  const model::ModelSpec spec_ = model::load_model_spec(kModelDir);
  BlockingQueue<LaneResult> results_;
  std::unique_ptr<transport::InprocFabric> fabric_;
  std::unique_ptr<attention_server::AttentionServer> attention_;
  std::unique_ptr<ffn_server::FfnServer> ffn_;
  StepId step_ = 0;
  Generation generation_ = 0;
  bool in_flight_ = false;
};

TEST_P(TwoServersTest, GreedyTokensAndLogprobsAreThoseOfTransformers) {
  const bool exact = GetParam() == Precision::kFloat32;
  const double tolerance = exact ? 2e-3 : 3e-2;
  double worst = 0.0;
  for (const auto& prompt : testing::load_golden(kModelDir).prompts) {
    const auto tokens = generate(prompt);
    ASSERT_EQ(tokens.size(), prompt.output_ids.size()) << prompt.id;
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      if (tokens[i].token != prompt.output_ids[i]) {
        EXPECT_TRUE(!exact && prompt.smallest_gap < 0.1)
            << prompt.id << ": token " << i << " is " << tokens[i].token << ", not "
            << prompt.output_ids[i];
        break;
      }
      if (i >= prompt.top.size()) {
        continue;
      }
      for (const auto& expected : prompt.top[i]) {
        // bf16: the chosen token of paths that must be equal; see docs/testing.md.
        if (!exact && (expected.token != tokens[i].token || prompt.smallest_gap < 0.1)) {
          continue;
        }
        for (const auto& actual : tokens[i].top_logprobs) {
          if (actual.token == expected.token) {
            const double off = std::abs(actual.logprob - expected.logprob);
            worst = std::max(worst, off);
            EXPECT_LE(off, tolerance) << prompt.id << " position " << i << " token "
                                      << expected.token << " at " << expected.logprob;
          }
        }
      }
    }
  }
  std::cout << "largest deviation of a log-probability: " << worst << '\n';
}

INSTANTIATE_TEST_SUITE_P(Precisions, TwoServersTest,
                         ::testing::Values(Precision::kFloat32, Precision::kBFloat16),
                         [](const auto& instance) { return to_string(instance.param); });

}  // namespace
}  // namespace fastfd
