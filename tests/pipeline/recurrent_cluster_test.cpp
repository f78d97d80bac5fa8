// A model with recurrent state (gated delta net layers) where sequences end, are aborted, preempted
// and lose their epoch: FAULTS 13, 14, 29. That its answers are right at all, parity_test shows.

#include <gtest/gtest.h>

#include <string>
#include <thread>

#include "fastfd/attention_server/attention_server.h"
#include "fastfd/cluster/local_cluster.h"
#include "fastfd/core/blocking_queue.h"
#include "fastfd/core/logging.h"
#include "fastfd/ffn_server/ffn_server.h"
#include "fastfd/transport/inproc.h"
#include "support/collector.h"
#include "support/golden.h"

namespace fastfd {
namespace {

using namespace std::chrono_literals;
using testing::Collector;
using testing::GoldenPrompt;

constexpr auto kPatience = 300s;  // of a loaded machine or a sanitizer
constexpr std::uint32_t kPageSize = 4;

std::filesystem::path model_folder() {
  return std::filesystem::path(FASTFD_SOURCE_DIR) / "tests" / "reference" / "models" /
         "qwen3.5-moe";
}

// ---- Whole clusters ----

class RecurrentClusterTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { init_logging("recurrent", "warn"); }

  static config::ClusterConfig make_config() {
    config::ClusterConfig config;
    config.model.path = model_folder();
    config.model.precision = Precision::kFloat32;
    config.model.max_model_len = 192;
    config.attention.kv_cache.dtype = DType::kFloat32;
    config.attention.kv_cache.page_size = kPageSize;
    config.attention.kv_cache.pages = 512;
    config.ffn.servers = 2;
    config.transport.kind = config::TransportKind::kInproc;
    config.transport.spin_us = 0;
    config.scheduler.microbatches = 2;
    config.scheduler.plan_ahead = 3;
    config.scheduler.max_sequences = 8;
    config.scheduler.prefill_chunk = 16;
    return config;
  }

  void start(const config::ClusterConfig& config) {
    const cluster::Blueprint blueprint(config);
    cluster_ = std::make_unique<cluster::LocalCluster>(blueprint,
                                                       cluster::load_cluster_weights(blueprint));
    ASSERT_TRUE(cluster_->wait_ready(kPatience)) << cluster_->engine().state().detail;
  }

  Request make_request(const GoldenPrompt& prompt, std::uint32_t max_tokens) {
    Request request;
    request.id = cluster_->engine().next_request_id();
    request.prompt = prompt.prompt_ids;
    request.max_tokens = max_tokens;
    request.sampling.temperature = 0.0F;
    request.sampling.ignore_eos = true;
    request.arrival = std::chrono::steady_clock::now();
    return request;
  }

  // All at once; the tokens of each.
  std::vector<std::vector<TokenId>> run(std::vector<Request> requests) {
    Collector collector;
    std::vector<RequestId> ids;
    for (Request& request : requests) {
      ids.push_back(request.id);
      EXPECT_TRUE(cluster_->engine().submit(std::move(request), &collector));
    }
    EXPECT_TRUE(collector.wait_finished(ids.size(), kPatience));
    std::vector<std::vector<TokenId>> tokens;
    for (const RequestId id : ids) {
      const Collector::Answer answer = collector.take(id);
      EXPECT_EQ(answer.error, "");
      auto& list = tokens.emplace_back();
      for (const TokenEvent& event : answer.tokens) {
        list.push_back(event.token);
      }
    }
    return tokens;
  }

  void expect_golden(const std::vector<TokenId>& tokens, const GoldenPrompt& prompt) {
    ASSERT_LE(tokens.size(), prompt.output_ids.size());
    EXPECT_TRUE(std::equal(tokens.begin(), tokens.end(), prompt.output_ids.begin())) << prompt.id;
  }

  const testing::Golden golden_ = testing::load_golden(model_folder());
  std::unique_ptr<cluster::LocalCluster> cluster_;
};

// FAULTS 13: what is in flight for those who leave goes on writing states, of their slots only.
TEST_F(RecurrentClusterTest, AbortsInAnyStateDisturbNobody) {
  start(make_config());
  Collector collector;
  for (int round = 0; round < 6; ++round) {
    std::vector<RequestId> aborted;
    for (const auto& prompt : golden_.prompts) {
      auto request = make_request(prompt, 40);
      aborted.push_back(request.id);
      ASSERT_TRUE(cluster_->engine().submit(std::move(request), &collector));
    }
    if (round % 3 > 0) {  // in mid-decode; else in the queue, or in a prompt
      EXPECT_TRUE(collector.wait_token(aborted[round % 3], kPatience));
    }
    for (const RequestId id : aborted) {
      cluster_->engine().abort(id);
    }
    std::vector<Request> requests;
    for (const auto& prompt : golden_.prompts) {
      requests.push_back(make_request(prompt, 24));
    }
    const auto tokens = run(std::move(requests));
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      ASSERT_EQ(tokens[i].size(), 24U) << golden_.prompts[i].id;
      expect_golden(tokens[i], golden_.prompts[i]);
    }
  }
}

// FAULTS 14: with room for two, every end hands a slot on while steps are in flight.
TEST_F(RecurrentClusterTest, SuccessorsInFreedSlotsBeginEmpty) {
  auto config = make_config();
  config.scheduler.max_sequences = 2;
  start(config);
  std::vector<Request> requests;
  std::vector<const GoldenPrompt*> prompts;
  for (std::uint32_t i = 0; i < 60; ++i) {
    prompts.push_back(&golden_.prompts[i % golden_.prompts.size()]);
    requests.push_back(make_request(*prompts.back(), 1 + i * 7 % 12));
  }
  const auto tokens = run(std::move(requests));
  for (std::uint32_t i = 0; i < tokens.size(); ++i) {
    EXPECT_EQ(tokens[i].size(), 1 + i * 7 % 12);
    expect_golden(tokens[i], *prompts[i]);
  }
}

// FAULTS 29: whoever is preempted is computed again, states and all.
TEST_F(RecurrentClusterTest, PreemptedSequencesDrawTheSameTokens) {
  auto config = make_config();
  config.attention.kv_cache.pages = config.model.max_model_len / kPageSize;
  start(config);
  const auto sampled = [&](std::uint64_t index) {
    Request request = make_request(golden_.prompts[index % golden_.prompts.size()], 50);
    request.sampling.temperature = 1.0F;
    request.sampling.seed = index;
    request.sampling.frequency_penalty = 0.5F;
    return request;
  };
  std::vector<std::vector<TokenId>> alone;
  std::vector<Request> requests;
  for (std::uint64_t i = 0; i < 12; ++i) {
    alone.push_back(run({sampled(i)})[0]);
    requests.push_back(sampled(i));
  }
  ASSERT_EQ(cluster_->metric("fastfd_preemptions_total"), 0.0);
  EXPECT_EQ(run(std::move(requests)), alone);
  EXPECT_GT(cluster_->metric("fastfd_preemptions_total"), 0.0);
}

TEST_F(RecurrentClusterTest, NobodyStartsAtAnothersPrefix) {
  start(make_config());
  const auto& prompt = golden_.prompts.back();
  const auto run_choices = [&](bool shared) {
    std::vector<Request> requests;
    for (std::uint64_t choice = 0; choice < 4; ++choice) {
      Request request = make_request(prompt, 20);
      request.sampling.temperature = 1.0F;
      request.sampling.seed = choice;
      request.fork_of = shared && choice > 0 ? requests[0].id : 0;
      requests.push_back(std::move(request));
    }
    return run(std::move(requests));
  };
  const auto alone = run_choices(false);
  EXPECT_EQ(run_choices(true), alone);
  EXPECT_NE(alone[0], alone[1]);
  EXPECT_EQ(cluster_->metric("fastfd_prompt_tokens_computed_total"),
            8.0 * static_cast<double>(prompt.prompt_ids.size()));
  EXPECT_EQ(cluster_->metric("fastfd_kv_pages_copied_total"), 0.0);
}

// ---- One attention server whose FFN server goes, with plans written by hand ----

class RecurrentEpochTest : public ::testing::Test {
 protected:
  RecurrentEpochTest() {
    attention_ = std::make_unique<attention_server::AttentionServer>(
        attention_server::AttentionServerOptions{.precision = Precision::kFloat32,
                                                 .dispatch_dtype = DType::kFloat32,
                                                 .num_pages = 64,
                                                 .page_size = kPageSize,
                                                 .kv_dtype = DType::kFloat32,
                                                 .num_slots = 2,
                                                 .max_lane_rows = shape_.max_lane_rows,
                                                 .max_model_len = 192},
        spec_,
        std::make_shared<model::AttentionWeights>(
            model::load_attention_weights(model_folder(), spec_)),
        [this](LaneResult result) { results_.push(std::move(result)); },
        [this](const Status& status) {
          failures_.push(status);
          results_.close();
        });
    ffn_weights_ = std::make_shared<model::FfnWeights>(
        model::load_ffn_weights(model_folder(), spec_, placement_, 0));
    begin_epoch();
  }

  // A new FFN server each time, as after the loss of the last.
  void begin_epoch() {
    ++epoch_;
    fabric_ = std::make_unique<transport::InprocFabric>(shape_, 1, 1, transport::WaitPolicy{0});
    ffn_ = std::make_unique<ffn_server::FfnServer>(
        ffn_server::FfnServerOptions{.precision = Precision::kFloat32,
                                     .dispatch_dtype = DType::kFloat32,
                                     .max_lane_rows = shape_.max_lane_rows,
                                     .colocated_with = std::nullopt},
        spec_, ffn_weights_, [](const Status& status) { ADD_FAILURE() << status.to_string(); });
    attention_->begin_epoch(epoch_, fabric_->attention_port(0), placement_);
    ffn_->begin_epoch(epoch_, fabric_->ffn_port(0));
  }

  void end_epoch() {
    attention_->stop_epoch();
    ffn_->stop_epoch();
    ffn_.reset();
  }

  void submit(AttentionLanePlan lane, bool with_ffn = true) {
    FfnStepPlan ffn;
    ffn.epoch = epoch_;
    ffn.step = ++step_;
    ffn.lanes.push_back({.lane = 0, .participants = 1});
    AttentionStepPlan plan;
    plan.epoch = epoch_;
    plan.step = step_;
    lane.participants = 1;
    plan.lanes.push_back(std::move(lane));
    attention_->submit_plan(std::move(plan));
    if (with_ffn) {
      ffn_->submit_plan(ffn);
    }
  }

  // Token sampled by the lane, or kNoToken.
  TokenId run(AttentionLanePlan lane) {
    submit(std::move(lane));
    const auto result = results_.pop_until(std::chrono::steady_clock::now() + kPatience);
    return result && result->tokens.size() == 1 ? result->tokens[0].token : kNoToken;
  }

  // Opens slot 0 with all pages it will ever need.
  AttentionLanePlan prefill(const std::vector<TokenId>& tokens) {
    AttentionLanePlan plan;
    plan.num_rows = static_cast<std::uint32_t>(tokens.size());
    SlotOpen& open = plan.opens.emplace_back();
    open.generation = ++generation_;
    open.prompt_len = plan.num_rows;
    open.sampling.temperature = 0.0F;
    PrefillPiece& piece = plan.pieces.emplace_back();
    piece.generation = generation_;
    piece.tokens = tokens;
    piece.samples = true;
    for (PageId page = 0; page < 48; ++page) {
      piece.new_pages.push_back(page);
    }
    return plan;
  }

  static AttentionLanePlan decode() {
    AttentionLanePlan plan;
    plan.num_rows = 1;
    return plan;
  }

  const model::ModelSpec spec_ = model::load_model_spec(model_folder());
  const ExpertPlacement placement_ = ExpertPlacement::contiguous(spec_.num_experts, 1, 1);
  const transport::WindowShape shape_{.max_lane_rows = 256,
                                      .hidden_dim = spec_.hidden_dim,
                                      .max_routes_per_row = spec_.experts_per_token,
                                      .num_layers = spec_.num_layers,
                                      .dispatch_dtype = DType::kFloat32,
                                      .combine_dtype = DType::kFloat32};
  const testing::Golden golden_ = testing::load_golden(model_folder());
  BlockingQueue<LaneResult> results_;
  BlockingQueue<Status> failures_;
  std::shared_ptr<const model::FfnWeights> ffn_weights_;
  std::unique_ptr<transport::InprocFabric> fabric_;
  std::unique_ptr<attention_server::AttentionServer> attention_;
  std::unique_ptr<ffn_server::FfnServer> ffn_;
  Epoch epoch_ = 0;
  StepId step_ = 0;
  Generation generation_ = 0;
};

// FAULTS 29 and PROTOCOL 2: the abandoned step has moved the states of the first layers on. The
// prompt with what was emitted is computed again, in the same slot.
TEST_F(RecurrentEpochTest, ASequenceIsComputedAgainAfterItsEpochEndedInMidStep) {
  constexpr std::size_t kTokensAnEpoch = 6;
  for (const auto& prompt : golden_.prompts) {
    std::vector<TokenId> tokens = prompt.prompt_ids;
    std::vector<TokenId> emitted;
    while (emitted.size() + kTokensAnEpoch <= prompt.output_ids.size()) {
      TokenId token = run(prefill(tokens));
      for (std::size_t i = 0; token != kNoToken; ++i) {
        tokens.push_back(token);
        emitted.push_back(token);
        if (i + 1 == kTokensAnEpoch) {
          break;
        }
        token = run(decode());
      }
      ASSERT_EQ(tokens.size(), prompt.prompt_ids.size() + emitted.size());
      ASSERT_EQ(emitted.size() % kTokensAnEpoch, 0U);
      // The first layers of the next token, whose answer never comes.
      submit(decode(), /*with_ffn=*/false);
      while (attention_->progress()[0].step != step_ || !attention_->progress()[0].waiting) {
        std::this_thread::sleep_for(1ms);
      }
      end_epoch();
      begin_epoch();
    }
    EXPECT_TRUE(std::equal(emitted.begin(), emitted.end(), prompt.output_ids.begin())) << prompt.id;
  }
  EXPECT_FALSE(failures_.pop_until(std::chrono::steady_clock::now()));
}

// FAULTS 29: nobody goes on from a state that another epoch left behind.
TEST_F(RecurrentEpochTest, ARowOfTheLastEpochIsRefused) {
  const auto& prompt = golden_.prompts[2];
  ASSERT_EQ(run(prefill(prompt.prompt_ids)), prompt.output_ids[0]);
  end_epoch();
  begin_epoch();
  AttentionLanePlan plan = decode();
  plan.rows.emplace();
  plan.rows->push_back({.slot = 0,
                        .generation = generation_,
                        .position = static_cast<std::uint32_t>(prompt.prompt_ids.size()),
                        .last_token = prompt.output_ids[0]});
  submit(std::move(plan), /*with_ffn=*/false);
  const auto failure = failures_.pop_until(std::chrono::steady_clock::now() + kPatience);
  ASSERT_TRUE(failure);
  EXPECT_NE(failure->message().find("slot 0 was never opened"), std::string::npos)
      << failure->to_string();
}

}  // namespace
}  // namespace fastfd
