// FAULTS 24: no host stands between a plan and its tokens. One thread is the host of both servers
// here. It enqueues several steps of the attention server before the FFN server has heard of the
// first: a server whose host had to see an answer between two layers would wait for ever for what
// only this thread can start.

#include <gtest/gtest.h>

#include <array>
#include <memory>
#include <vector>

#include "attention_server/gpu_runner.h"
#include "fastfd/cluster/blueprint.h"
#include "fastfd/cluster/local_cluster.h"
#include "fastfd/core/row_bucket.h"
#include "fastfd/device/cuda.h"
#include "ffn_server/gpu_worker.h"
#include "support/tiny_checkpoint.h"

namespace fastfd {
namespace {

constexpr LaneId kNumLanes = 2;
constexpr StepId kNumSteps = 4;  // a prompt, then decode

config::ClusterConfig make_config(const test::TemporaryFolder& folder) {
  test::TinyCheckpointOptions shape;
  shape.hidden_dim = 128;
  shape.head_dim = 64;
  shape.num_layers = 3;
  shape.num_experts = 8;
  shape.expert_intermediate_dim = 128;
  test::write_file(folder.path() / "config.json", test::make_tiny_config(shape));
  config::ClusterConfig config;
  config.model.path = folder.path();
  config.model.load_format = LoadFormat::kDummy;
  config.model.max_model_len = 64;
  config.attention.device = {.is_cuda = true};
  config.ffn.device = {.is_cuda = true};
  config.attention.kv_cache.pages = 16;
  config.transport.kind = config::TransportKind::kInproc;
  config.scheduler.max_sequences = 4;
  config.scheduler.max_batched_tokens = 32;
  config.scheduler.prefill_chunk = 32;
  return config;
}

/// What a coordinator would publish: a sequence a lane, its prompt in step 1, one row in the
/// others.
AttentionLanePlan attention_plan(LaneId lane, StepId step, bool use_graph) {
  AttentionLanePlan plan;
  plan.lane = lane;
  plan.participants = 1;
  plan.use_graph = use_graph && step > 1;
  if (step == 1) {
    SlotOpen& open = plan.opens.emplace_back();
    open.slot = lane;
    open.generation = 1;
    PrefillPiece& piece = plan.pieces.emplace_back();
    piece.slot = lane;
    piece.generation = 1;
    piece.tokens = {static_cast<TokenId>(1 + lane), 7, 9, 11, 13};
    piece.new_pages = {lane};
    piece.samples = true;
    open.prompt_len = static_cast<std::uint32_t>(piece.tokens.size());
    open.sampling.temperature = 0.0F;
  }
  plan.num_rows = step == 1 ? 5 : 1;
  plan.row_bucket = row_bucket(plan.num_rows);
  return plan;
}

class HostFreeStepTest : public ::testing::TestWithParam<bool> {
 protected:
  HostFreeStepTest()
      : blueprint_(make_config(folder_)),
        weights_(cluster::load_cluster_weights(blueprint_)),
        gpu_(device::CudaDevice::open(0), 2),
        fabric_(gpu_.device(), blueprint_.window_shape(), 1, 1),
        runner_(blueprint_.attention_options(0), blueprint_.spec(), weights_.gpu_attention, gpu_,
                nullptr),
        worker_(blueprint_.ffn_options(0), blueprint_.spec(), weights_.gpu_ffn[0], gpu_),
        sequences_({.num_slots = blueprint_.attention_options(0).num_slots,
                    .num_pages = 16,
                    .page_size = 16,
                    .max_model_len = 64,
                    .max_lane_rows = 32,
                    .tokens_on_device = true}) {
    fabric_.attention_port(0)->use_abort_word(runner_.abort_word());
    fabric_.attention_port(0)->use_abort_state(runner_.abort_state());
    fabric_.ffn_port(0)->use_abort_word(worker_.abort_word());
    fabric_.ffn_port(0)->use_abort_state(worker_.device_abort_state());
  }

  void begin() {
    ++epoch_;  // flags only grow
    sequences_.reset();
    require(runner_.begin_epoch(*fabric_.attention_port(0), blueprint_.placement().make()));
    require(worker_.begin_epoch(*fabric_.ffn_port(0)));
    require(runner_.synchronize());
    require(worker_.synchronize());
  }

  void enqueue_attention(StepId step, LaneId lane) {
    const auto plan = attention_plan(lane, step, GetParam());
    require(sequences_.build(plan, batch_));
    layout::LaneControl control;
    control.step = step;
    control.epoch = epoch_;
    control.num_rows = batch_.num_rows;
    control.num_spans = static_cast<std::uint32_t>(batch_.spans.size());
    control.num_samples = static_cast<std::uint32_t>(batch_.samples.size());
    control.participants = plan.participants;
    require(runner_.enqueue(lane, batch_, sequences_, control,
                            {.bucket = plan.row_bucket, .use_graph = plan.use_graph}));
    rings_[lane].push_back(runner_.lane(lane).ring_index());
  }

  void enqueue_ffn(StepId step, LaneId lane) {
    const auto plan = attention_plan(lane, step, GetParam());
    const auto outcome = worker_.enqueue(epoch_, step,
                                         {.lane = lane,
                                          .participants = plan.participants,
                                          .row_bucket = plan.row_bucket,
                                          .use_graph = plan.use_graph,
                                          .participant_buckets = {plan.row_bucket}});
    require(outcome.status());
  }

  /// Each lane's tokens, by step.
  std::vector<TokenId> finish() {
    require(runner_.synchronize());
    require(worker_.synchronize());
    std::vector<TokenId> tokens;
    for (LaneId lane = 0; lane < kNumLanes; ++lane) {
      for (const std::uint32_t ring : rings_[lane]) {
        const auto& staging = runner_.lane(lane).staging_at(ring);
        EXPECT_EQ(staging.abort->aborted, 0U);
        tokens.push_back(staging.results[0].token);
      }
      rings_[lane].clear();
    }
    return tokens;
  }

  static void require(const Status& status) { ASSERT_TRUE(status.is_ok()) << status.message(); }

  test::TemporaryFolder folder_;
  const cluster::Blueprint blueprint_;
  const cluster::ClusterWeights weights_;
  const device::GpuPart gpu_;
  transport::InprocDeviceFabric fabric_;
  attention_server::GpuRunner runner_;
  ffn_server::GpuFfnWorker worker_;
  attention_server::SequenceTable sequences_;
  attention_server::LaneBatch batch_;
  std::array<std::vector<std::uint32_t>, kNumLanes> rings_;
  Epoch epoch_ = 0;
};

TEST_P(HostFreeStepTest, StepsAreEnqueuedBeforeAnyAnswerIsThere) {
  begin();
  for (StepId step = 1; step <= kNumSteps; ++step) {
    for (LaneId lane = 0; lane < kNumLanes; ++lane) {
      enqueue_attention(step, lane);
    }
  }
  for (StepId step = 1; step <= kNumSteps; ++step) {
    for (LaneId lane = 0; lane < kNumLanes; ++lane) {
      enqueue_ffn(step, lane);
    }
  }
  const auto tokens = finish();
  ASSERT_EQ(tokens.size(), std::size_t{kNumLanes} * kNumSteps);

  // The experts first, this time, and step by step: the same tokens.
  begin();
  std::vector<TokenId> stepwise;
  for (StepId step = 1; step <= kNumSteps; ++step) {
    for (LaneId lane = 0; lane < kNumLanes; ++lane) {
      enqueue_ffn(step, lane);
      enqueue_attention(step, lane);
      const auto token = finish();
      stepwise.insert(stepwise.end(), token.begin(), token.end());
    }
  }
  for (LaneId lane = 0; lane < kNumLanes; ++lane) {
    for (StepId step = 1; step <= kNumSteps; ++step) {
      const TokenId token = tokens[lane * kNumSteps + step - 1];
      EXPECT_GE(token, 0);
      EXPECT_LT(token, static_cast<TokenId>(blueprint_.spec().vocab_size));
      EXPECT_EQ(stepwise[(step - 1) * kNumLanes + lane], token) << "lane " << lane;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Graphs, HostFreeStepTest, ::testing::Bool());

}  // namespace
}  // namespace fastfd

// Not gtest's main: the environment is read at the first CUDA call.
int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  fastfd::device::set_cuda_environment();
  return RUN_ALL_TESTS();
}
