/// Transport nccl with what one GPU allows: NCCL refuses two ranks on one, so a communicator of one
/// rank sends to itself. Ranks on GPUs of their own: nccl_multi_gpu_test.cpp.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "gpu/dispatch_sender.h"
#include "gpu/moe_support.h"
#include "kernels/dispatch/op_cuda.h"
#include "kernels/wait/op_cuda.h"
#include "transport/nccl_communicator.h"
#include "transport/nccl_port.h"
#include "transport/slot_parts.h"

namespace fastfd::testing {
namespace {

using ::testing::HasSubstr;
using transport::ConnectOptions;
using transport::Deadline;
using transport::dispatch_parts;
using transport::NcclCommunicator;
using transport::NcclId;
using transport::NcclTransfer;
using transport::SlotPart;
using transport::SlotParts;

/// Nothing may be loaded, and no queue be shared, under a kernel that waits (PROTOCOL 5).
const bool kIsConfigured = setenv("CUDA_MODULE_LOADING", "EAGER", 1) == 0 &&
                           setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 1) == 0;

constexpr ConnectOptions kPatient{std::chrono::seconds(60), nullptr};

NcclId new_id() {
  ncclUniqueId unique_id;
  EXPECT_EQ(transport::nccl().get_unique_id(&unique_id), ncclSuccess);
  NcclId id;
  std::memcpy(id.data(), &unique_id, sizeof(unique_id));
  return id;
}

/// A communicator whose only rank is this process.
class NcclTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(kIsConfigured);
    if (const Status status = transport::nccl_availability(); !status) {
      GTEST_SKIP() << status.message();
    }
    require_cuda(cudaSetDevice(0), "cudaSetDevice");
    const Status status = communicator_.join(new_id(), 1, 0, Deadline(kPatient));
    ASSERT_TRUE(status) << status.to_string();
  }

  /// What two servers would do: the parts of a slot from one window to the other.
  void carry(const SlotParts& parts, std::byte* from, std::byte* to, cudaStream_t stream) {
    std::vector<NcclTransfer> transfers;
    for (const SlotPart& part : parts) {
      transfers.push_back({true, from + part.offset, part.num_bytes, 0});
      transfers.push_back({false, to + part.offset, part.num_bytes, 0});
    }
    const Status status = communicator_.exchange(transfers, stream);
    ASSERT_TRUE(status) << status.to_string();
  }

  NcclCommunicator communicator_{"test"};
};

TEST_F(NcclTest, CarriesThePartsOfASlotAndNothingElse) {
  const auto window = layout::DispatchLayout::make({600, 512, 8});
  std::vector<std::byte> sent(window.bytes());
  for (std::size_t i = 0; i < sent.size(); ++i) {
    sent[i] = static_cast<std::byte>(i * 7 + i / 251);
  }
  Windows from(1, window.grid);
  from.put(0, sent);
  for (const std::uint32_t rows : {0U, 1U, 33U, 600U}) {
    Windows to(1, window.grid);
    std::vector<std::byte> expected = to.get(0);
    const SlotParts parts = dispatch_parts(window, kTestHop, rows);
    for (const SlotPart& part : parts) {
      std::memcpy(expected.data() + part.offset, sent.data() + part.offset, part.num_bytes);
    }
    TestStream stream;
    carry(parts, from.window(0), to.window(0), stream);
    stream.wait();
    EXPECT_TRUE(to.get(0) == expected) << rows << " rows";
  }
}

/// What an FFN server makes of a window.
class Indexer {
 public:
  static constexpr std::uint32_t kMaxTokens = 32;

  Indexer(const Sender& sender, Windows& windows, std::uint32_t num_experts)
      : control_(test_control(0, /*participants=*/1)),
        windows_(windows),
        window_(sender.layout_),
        num_experts_(num_experts),
        max_routes_(kMaxTokens * sender.case_.top_k),
        expert_begin(num_experts + 1),
        route_tokens(max_routes_),
        route_weights(max_routes_),
        token_route_begin(kMaxTokens + 1),
        token_routes(max_routes_),
        token_rows(kMaxTokens),
        token_sources(kMaxTokens),
        peer_rows(1) {}

  void enqueue(cudaStream_t stream) {
    Status status = kernels::cuda::launch_wait({.control = control_.data(),
                                                .hop = kTestHop,
                                                .windows = windows_.pointers(),
                                                .num_peers = 1,
                                                .grid = window_.grid,
                                                .timeout_ns = timeout_ns_.data(),
                                                .abort_word = abort_word.data(),
                                                .ready = ready.data(),
                                                .abort = abort.data()},
                                               stream);
    ASSERT_TRUE(status) << status.to_string();
    status = kernels::cuda::launch_index({.control = control_.data(),
                                          .hop = kTestHop,
                                          .ready = ready.data(),
                                          .windows = windows_.pointers(),
                                          .num_peers = 1,
                                          .window = window_,
                                          .num_experts = num_experts_,
                                          .max_tokens = kMaxTokens,
                                          .max_routes = max_routes_,
                                          .tables = {.expert_begin = expert_begin.data(),
                                                     .route_tokens = route_tokens.data(),
                                                     .route_weights = route_weights.data(),
                                                     .num_tokens = num_tokens.data(),
                                                     .token_route_begin = token_route_begin.data(),
                                                     .token_routes = token_routes.data(),
                                                     .token_rows = token_rows.data(),
                                                     .token_sources = token_sources.data(),
                                                     .peer_rows = peer_rows.data()},
                                          .abort = abort.data()},
                                         stream);
    ASSERT_TRUE(status) << status.to_string();
  }

 private:
  DeviceValue<layout::LaneControl> control_;
  Windows& windows_;
  layout::DispatchLayout window_;
  std::uint32_t num_experts_;
  std::uint32_t max_routes_;
  DeviceValue<std::uint64_t> timeout_ns_{2'000'000'000};

 public:
  DeviceArray<std::uint32_t> expert_begin;
  DeviceArray<std::uint32_t> route_tokens;
  DeviceArray<float> route_weights;
  DeviceArray<std::uint32_t> token_route_begin;
  DeviceArray<std::uint32_t> token_routes;
  DeviceArray<const void*> token_rows;
  DeviceArray<kernels::cuda::TokenSource> token_sources;
  DeviceArray<std::uint32_t> peer_rows;
  DeviceValue<std::uint32_t> num_tokens{99};
  DeviceValue<std::uint32_t> ready{7};
  DeviceValue<layout::AbortState> abort;
  PinnedWord abort_word;
};

TEST_F(NcclTest, AnFfnServerFindsWhatItWouldInTheDirectWindow) {
  for (const std::uint32_t num_rows : {0U, 1U, 13U, 24U}) {
    SCOPED_TRACE(num_rows);
    Sender sender({.num_rows = num_rows, .max_rows = 24, .top_k = 3, .num_servers = 2});
    constexpr std::uint32_t kServer = 1;
    const auto num_experts =
        static_cast<std::uint32_t>(sender.placement_.experts_of(kServer).size());
    Windows direct(1, sender.layout_.grid);
    Windows carried(1, sender.layout_.grid);
    TestStream stream;

    // On one stream, as the servers do it: nothing but the order holds them together.
    const Status status = launch_dispatch(sender.params(), stream);
    ASSERT_TRUE(status) << status.to_string();
    carry(dispatch_parts(sender.layout_, kTestHop, sender.case_.max_rows),
          sender.windows_.window(kServer), carried.window(0), stream);
    Indexer of_carried(sender, carried, num_experts);
    of_carried.enqueue(stream);
    stream.wait();
    direct.put(0, sender.windows_.get(kServer));
    Indexer of_direct(sender, direct, num_experts);
    of_direct.enqueue(stream);
    stream.wait();

    EXPECT_EQ(of_carried.ready.get(), 1U);
    EXPECT_EQ(of_carried.abort.get().aborted, 0U);
    EXPECT_EQ(of_carried.peer_rows.get(), of_direct.peer_rows.get());
    const std::uint32_t tokens = of_direct.num_tokens.get();
    ASSERT_EQ(of_carried.num_tokens.get(), tokens);
    EXPECT_EQ(of_carried.expert_begin.get(), of_direct.expert_begin.get());
    const std::uint32_t routes = of_direct.expert_begin.get().back();
    const auto same = [](const auto& one, const auto& other, std::uint32_t count) {
      return std::memcmp(one.get().data(), other.get().data(), count * sizeof(one.get()[0])) == 0;
    };
    EXPECT_TRUE(same(of_carried.route_tokens, of_direct.route_tokens, routes));
    EXPECT_TRUE(same(of_carried.route_weights, of_direct.route_weights, routes));
    EXPECT_TRUE(same(of_carried.token_routes, of_direct.token_routes, routes));
    const std::size_t row_bytes = sender.layout_.dims.row_bytes;
    const auto bytes_of = [&](Windows& windows, const void* row) {
      const auto offset = static_cast<const std::byte*>(row) - windows.window(0);
      const std::vector<std::byte> all = windows.get(0);
      return std::vector<std::byte>(all.begin() + offset,
                                    all.begin() + offset + static_cast<std::ptrdiff_t>(row_bytes));
    };
    for (std::uint32_t token = 0; token < tokens; ++token) {
      EXPECT_EQ(bytes_of(carried, of_carried.token_rows.get()[token]),
                bytes_of(direct, of_direct.token_rows.get()[token]));
    }
  }
}

TEST_F(NcclTest, AfterAbortNothingIsEnqueued) {
  DeviceArray<std::byte> bytes(256);
  TestStream stream;
  communicator_.abort();
  communicator_.abort();
  const std::vector<NcclTransfer> transfers = {{true, bytes.data(), 128, 0},
                                               {false, bytes.data() + 128, 128, 0}};
  EXPECT_EQ(communicator_.exchange(transfers, stream).code(), StatusCode::kAborted);
  EXPECT_TRUE(communicator_.health());
}

TEST_F(NcclTest, WhoWaitsForARankThatNeverComesCanGiveUp) {
  NcclCommunicator lonely("attention server 0 (rank 0 of 2)");
  const Deadline deadline({std::chrono::milliseconds(500), nullptr});
  const auto start = std::chrono::steady_clock::now();
  const Status status = lonely.join(new_id(), 2, 0, deadline);
  EXPECT_EQ(status.code(), StatusCode::kDeadlineExceeded) << status.to_string();
  EXPECT_THAT(status.message(), HasSubstr("attention server 0 (rank 0 of 2)"));
  lonely.abort();
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(20));

  std::atomic<bool> cancel{false};
  NcclCommunicator cancelled("cancelled");
  std::jthread canceller([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    cancel.store(true);
  });
  EXPECT_EQ(cancelled.join(new_id(), 2, 0, Deadline({std::chrono::seconds(60), &cancel})).code(),
            StatusCode::kAborted);
}

/// A port whose server's kernels hang: not under a tool that serialises kernels.
class NcclConcurrentTest : public NcclTest {
 protected:
  static constexpr std::uint64_t kForever = 120'000'000'000;

  /// A wait for an attention server that never sends.
  void hang(cudaStream_t stream) {
    const Status status = kernels::cuda::launch_wait({.control = control_.data(),
                                                      .hop = kTestHop,
                                                      .windows = windows_.pointers(),
                                                      .num_peers = 1,
                                                      .grid = window_.grid,
                                                      .timeout_ns = timeout_ns_.data(),
                                                      .abort_word = abort_word_.data(),
                                                      .ready = ready_.data(),
                                                      .abort = abort_.data()},
                                                     stream);
    ASSERT_TRUE(status) << status.to_string();
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    ASSERT_EQ(cudaStreamQuery(stream), cudaErrorNotReady);
  }

  layout::DispatchLayout window_ = layout::DispatchLayout::make({8, 256, 2});
  Windows windows_{1, window_.grid};
  DeviceValue<layout::LaneControl> control_{test_control(0, 1)};
  DeviceValue<std::uint64_t> timeout_ns_{kForever};
  DeviceValue<std::uint32_t> ready_{7};
  DeviceValue<layout::AbortState> abort_;
  PinnedWord abort_word_;
};

TEST_F(NcclConcurrentTest, TheMarkReachesKernelsThatRun) {
  const transport::AbortMark mark(device::CudaDevice::open(0));
  TestStream stream;
  hang(stream);
  mark.set(abort_.data());
  stream.wait();
  EXPECT_EQ(ready_.get(), 0U);
  EXPECT_EQ(abort_.get().aborted, 1U);
  EXPECT_EQ(abort_.get().reason, layout::AbortReason::kHostAsked);
}

TEST_F(NcclConcurrentTest, AbortEndsAStreamWhoseTransfersHaveNotBegun) {
  DeviceArray<std::byte> bytes(256);
  TestStream stream;
  // The first group of a pair is not behind a waiting kernel: it allocates.
  const std::vector<NcclTransfer> transfers = {{true, bytes.data(), 128, 0},
                                               {false, bytes.data() + 128, 128, 0}};
  ASSERT_TRUE(communicator_.exchange(transfers, stream));
  stream.wait();
  hang(stream);
  const Status status = communicator_.exchange(transfers, stream);
  ASSERT_TRUE(status) << status.to_string();
  abort_word_.raise();  // as a port does, first of all
  const auto start = std::chrono::steady_clock::now();
  communicator_.abort();
  stream.wait();
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(10));
  EXPECT_EQ(ready_.get(), 0U);
}

}  // namespace
}  // namespace fastfd::testing
