/// The data-plane kernels together: dispatch, wait and index, experts, combine, wait and sum, over
/// layers and steps, against the CPU's operators.

#include <gtest/gtest.h>

#include <cstdlib>

#include "gpu/moe_cluster.h"

namespace fastfd::testing {
namespace {

using layout::AbortReason;

/// Nothing may be loaded, and no queue be shared, under a kernel that waits (PROTOCOL 5).
const bool kIsConfigured = setenv("CUDA_MODULE_LOADING", "EAGER", 1) == 0 &&
                           setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 1) == 0;

constexpr DType kFp8 = DType::kFloat8E4M3;
constexpr DType kBf16 = DType::kBFloat16;

/// All servers in turn on one stream: every wait finds its flags raised.
void run_serially(MoeCluster& cluster) {
  const cudaStream_t stream = cluster.attention[0]->stream;
  for (std::uint32_t layer = 0; layer < cluster.shape.num_layers; ++layer) {
    const auto participates = [&](std::uint32_t rank) {
      return (cluster.control.participants >> rank & 1) != 0;
    };
    for (std::uint32_t rank = 0; rank < cluster.shape.num_attention; ++rank) {
      if (participates(rank)) {
        cluster.enqueue_dispatch(rank, layer, stream);
      }
    }
    for (std::uint32_t rank = 0; rank < cluster.shape.num_ffn; ++rank) {
      cluster.enqueue_ffn(rank, layer, stream);
    }
    for (std::uint32_t rank = 0; rank < cluster.shape.num_attention; ++rank) {
      if (participates(rank)) {
        cluster.enqueue_combine(rank, layer, stream);
      }
    }
  }
  require_cuda(cudaStreamSynchronize(stream), "layers");
}

void expect_healthy(MoeCluster& cluster) {
  for (const auto& server : cluster.attention) {
    ASSERT_EQ(server->abort.get().aborted, 0U);
  }
  for (const auto& server : cluster.ffn) {
    ASSERT_EQ(server->abort.get().aborted, 0U);
  }
}

/// What the layers added to the residual, against the CPU.
void expect_results(MoeCluster& cluster) {
  ASSERT_NO_FATAL_FAILURE(expect_healthy(cluster));
  const std::vector<std::vector<float>> expected = cluster.reference();
  for (std::uint32_t rank = 0; rank < cluster.shape.num_attention; ++rank) {
    if ((cluster.control.participants >> rank & 1) == 0) {
      continue;
    }
    std::vector<float> added = cluster.attention[rank]->residual.get();
    std::vector<float> should_add = expected[rank];
    added.resize(should_add.size());
    for (std::size_t i = 0; i < added.size(); ++i) {
      added[i] -= cluster.residuals[rank][i];
      should_add[i] -= cluster.residuals[rank][i];
    }
    const bool fp8 = cluster.shape.dispatch_dtype == kFp8;
    EXPECT_LE(relative_error(added, should_add), fp8 ? 8e-2 : 5e-3) << "attention server " << rank;
  }
}

TEST(MoePipelineTest, EqualsTheCpuPath) {
  for (const ClusterCase& shape : std::vector<ClusterCase>{
           {.num_experts = 1, .top_k = 1},
           {.num_ffn = 3, .top_k = 3},
           // One layer: rounding may flip a later layer's routes.
           {.num_attention = 2, .num_ffn = 3, .top_k = 4, .num_layers = 1, .combine_dtype = kBf16},
           {.num_attention = 3,
           .num_ffn = 2,
           .num_experts = 16,
           .num_layers = 1,
           .hidden_dim = 384,
           .dispatch_dtype = kFp8},
       }) {
    SCOPED_TRACE(::testing::Message() << shape.num_attention << "A" << shape.num_ffn << "F");
    MoeCluster cluster(shape);
    const ServerMask everyone = (ServerMask{1} << shape.num_attention) - 1;
    for (const std::uint32_t rows : {1U, 24U, 5U}) {
      std::vector<std::uint32_t> num_rows(shape.num_attention, rows);
      num_rows.back() = shape.num_attention > 1 ? rows / 5 : rows;  // also none
      cluster.begin_step(num_rows, everyone);
      run_serially(cluster);
      ASSERT_NO_FATAL_FAILURE(expect_results(cluster));
    }
  }
}

TEST(MoePipelineTest, AServerMayStayOutOfAStep) {
  MoeCluster cluster({.num_attention = 3, .num_ffn = 2});
  for (const ServerMask participants : {0b101U, 0b010U, 0b111U}) {
    cluster.begin_step({7, 9, 3}, participants);
    run_serially(cluster);
    ASSERT_NO_FATAL_FAILURE(expect_results(cluster));
  }
}

TEST(MoePipelineTest, FloatCombineDoesNotDependOnWhoElseIsThere) {
  const auto run = [](std::uint32_t num_attention, std::uint32_t rows_of_others) {
    MoeCluster cluster({.num_attention = num_attention, .num_ffn = 2, .top_k = 3});
    std::vector<std::uint32_t> num_rows(num_attention, rows_of_others);
    num_rows[0] = 11;
    cluster.begin_step(num_rows, (ServerMask{1} << num_attention) - 1);
    run_serially(cluster);
    expect_healthy(cluster);
    std::vector<float> residual = cluster.attention[0]->residual.get();
    residual.resize(std::size_t{11} * 256);
    return residual;
  };
  const std::vector<float> alone = run(1, 0);
  EXPECT_EQ(run(3, 24), alone);
  EXPECT_EQ(run(3, 0), alone);
}

/// A step of one server as a graph.
class StepGraph {
 public:
  template <typename Enqueue>
  StepGraph(cudaStream_t stream, Enqueue enqueue) : stream_(stream) {
    cudaGraph_t graph = nullptr;
    require_cuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "capture");
    enqueue(stream);
    require_cuda(cudaStreamEndCapture(stream, &graph), "capture");
    require_cuda(cudaGraphInstantiate(&exec_, graph, 0), "instantiate");
    cudaGraphDestroy(graph);
  }
  ~StepGraph() { cudaGraphExecDestroy(exec_); }
  StepGraph(const StepGraph&) = delete;
  StepGraph& operator=(const StepGraph&) = delete;
  void launch() { require_cuda(cudaGraphLaunch(exec_, stream_), "replay"); }
  void wait() { require_cuda(cudaStreamSynchronize(stream_), "step"); }

 private:
  cudaStream_t stream_;
  cudaGraphExec_t exec_ = nullptr;
};

/// Servers that really wait for each other: not under a tool that serialises kernels.
class ConcurrentMoeTest : public ::testing::Test {
 protected:
  void capture(MoeCluster& cluster) {
    ASSERT_TRUE(kIsConfigured);
    for (std::uint32_t rank = 0; rank < cluster.shape.num_attention; ++rank) {
      attention_.push_back(
          std::make_unique<StepGraph>(cluster.attention[rank]->stream, [&](cudaStream_t stream) {
            for (std::uint32_t layer = 0; layer < cluster.shape.num_layers; ++layer) {
              cluster.enqueue_dispatch(rank, layer, stream);
              cluster.enqueue_combine(rank, layer, stream);
            }
          }));
    }
    for (std::uint32_t rank = 0; rank < cluster.shape.num_ffn; ++rank) {
      ffn_.push_back(
          std::make_unique<StepGraph>(cluster.ffn[rank]->stream, [&](cudaStream_t stream) {
            for (std::uint32_t layer = 0; layer < cluster.shape.num_layers; ++layer) {
              cluster.enqueue_ffn(rank, layer, stream);
            }
          }));
    }
  }

  std::vector<std::unique_ptr<StepGraph>> attention_;
  std::vector<std::unique_ptr<StepGraph>> ffn_;
};

TEST_F(ConcurrentMoeTest, OneCaptureServesStepsEpochsAndMembership) {
  MoeCluster cluster({.num_attention = 2, .num_ffn = 3, .top_k = 3, .num_layers = 5});
  capture(cluster);
  struct Step {
    std::vector<std::uint32_t> rows;
    ServerMask participants;
  };
  const std::vector<Step> steps = {
      {{4, 4}, 0b11}, {{7, 1}, 0b11}, {{0, 24}, 0b11},
      {{5, 0}, 0b01}, {{0, 0}, 0b11}, {{1, 2}, 0b11},
  };
  for (const Step& step : steps) {
    cluster.control.epoch += cluster.control.step % 2;
    cluster.begin_step(step.rows, step.participants);
    for (auto& graph : ffn_) {
      graph->launch();
    }
    for (std::uint32_t rank = 0; rank < 2; ++rank) {
      if ((step.participants >> rank & 1) != 0) {
        attention_[rank]->launch();
      }
    }
    for (auto& graph : ffn_) {
      graph->wait();
    }
    for (auto& graph : attention_) {
      graph->wait();
    }
    ASSERT_NO_FATAL_FAILURE(expect_results(cluster));
  }
}

TEST_F(ConcurrentMoeTest, AGraphThatLosesAPeerStoresNothingMore) {
  MoeCluster cluster({.num_attention = 1, .num_ffn = 2, .num_layers = 4});
  capture(cluster);
  cluster.begin_step({6}, 0b1);
  for (auto& server : cluster.attention) {
    server->timeout_ns.put(20'000'000);
  }
  ffn_[0]->launch();  // server 1 is lost
  attention_[0]->launch();
  attention_[0]->wait();
  // Server 0 waits for layer 1, which never leaves; its host ends it.
  cluster.ffn[0]->abort_word.raise();
  ffn_[0]->wait();
  const layout::AbortState abort = cluster.attention[0]->abort.get();
  EXPECT_EQ(abort.aborted, 1U);
  EXPECT_EQ(abort.reason, AbortReason::kTimedOut);
  EXPECT_EQ(abort.peer, 1U);
  EXPECT_EQ(abort.layer, 0U);
  EXPECT_EQ(abort.step, cluster.control.step);
  const layout::AbortState ended = cluster.ffn[0]->abort.get();
  EXPECT_EQ(ended.reason, AbortReason::kHostAsked);
  EXPECT_EQ(ended.layer, 1U);
  EXPECT_EQ(cluster.attention[0]->residual.get(), cluster.residuals[0]);
}

}  // namespace
}  // namespace fastfd::testing
