#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "gpu/moe_support.h"
#include "kernels/cuda/footprint_recorder.h"
#include "kernels/wait/op_cuda.h"

namespace fastfd::testing {
namespace {

using kernels::cuda::WaitParams;
using layout::AbortReason;
using layout::AbortState;

constexpr std::uint32_t kPeers = 5;
constexpr ServerMask kParticipants = 0b10110;

/// A server with five peers' windows; nobody has sent yet.
class WaitTest : public ::testing::Test {
 protected:
  void post(std::uint32_t peer, std::uint32_t num_rows = 3) {
    windows_.put_header(peer, kTestHop.lane, kTestHop.buffer(),
                        header_of(control_, kTestHop, num_rows, 0));
    windows_.put_flag(peer, kTestHop.lane, kTestHop.buffer(), kTestHop.flag(control_));
  }

  WaitParams params() {
    device_control_.put(control_);
    WaitParams params;
    params.control = device_control_.data();
    params.hop = kTestHop;
    params.windows = windows_.pointers();
    params.num_peers = kPeers;
    params.grid = layout_.grid;
    params.timeout_ns = timeout_ns_.data();
    params.abort_word = abort_word_.data();
    params.ready = ready_.data();
    params.abort = abort_.data();
    return params;
  }

  void run(const WaitParams& params) {
    const Status status = launch_wait(params, stream_);
    ASSERT_TRUE(status) << status.to_string();
    stream_.wait();
  }

  void expect_ready() {
    EXPECT_EQ(ready_.get(), 1U);
    EXPECT_EQ(abort_.get().aborted, 0U);
  }

  void expect_gave_up(AbortReason reason, std::uint32_t peer) {
    const AbortState abort = abort_.get();
    EXPECT_EQ(ready_.get(), 0U);
    EXPECT_EQ(abort.aborted, 1U);
    EXPECT_EQ(abort.reason, reason);
    EXPECT_EQ(abort.peer, peer);
    EXPECT_EQ(abort.lane, kTestHop.lane);
    EXPECT_EQ(abort.layer, kTestHop.layer);
    EXPECT_EQ(abort.step, control_.step);
  }

  layout::LaneControl control_ = test_control(0, kParticipants);
  layout::DispatchLayout layout_ = layout::DispatchLayout::make({8, 256, 2});
  Windows windows_{kPeers, layout_.grid};
  DeviceValue<layout::LaneControl> device_control_;
  DeviceValue<std::uint64_t> timeout_ns_{2'000'000};
  DeviceValue<std::uint32_t> ready_{7};
  DeviceValue<AbortState> abort_;
  PinnedWord abort_word_;
  TestStream stream_;
};

TEST_F(WaitTest, EndsWhenAllParticipantsHaveSent) {
  for (const std::uint32_t peer : {1U, 2U, 4U}) {
    post(peer);
  }
  run(params());
  expect_ready();
}

TEST_F(WaitTest, WithoutParticipantsThereIsNothingToWaitFor) {
  control_.participants = 0;
  run(params());
  expect_ready();
}

TEST_F(WaitTest, AnAttentionServerWaitsForEveryWindowThereIs) {
  windows_.forget(3);
  for (const std::uint32_t peer : {0U, 1U, 2U, 4U}) {
    post(peer, peer);
  }
  WaitParams wait = params();
  wait.participants_only = false;
  DeviceArray<std::uint32_t> expected({0, 1, 2, 99, 4});
  wait.expected_rows = expected.data();
  run(wait);
  expect_ready();
}

TEST_F(WaitTest, TimesOutNamingPeerStepAndTime) {
  post(1);
  run(params());
  expect_gave_up(AbortReason::kTimedOut, 2);
  EXPECT_GE(abort_.get().waited_ns, 2'000'000U);
}

TEST_F(WaitTest, AFlagOfAnotherEpochStepLayerOrLaneIsNotTaken) {
  const auto expect_missing = [&](const layout::LaneControl& control, const layout::LaneHop& hop) {
    abort_.put({});
    for (const std::uint32_t peer : {1U, 2U, 4U}) {
      post(peer);
    }
    windows_.put_flag(4, kTestHop.lane, kTestHop.buffer(), hop.flag(control));
    run(params());
    expect_gave_up(AbortReason::kTimedOut, 4);
  };
  layout::LaneControl control = control_;
  control.epoch -= 1;
  expect_missing(control, kTestHop);
  control = control_;
  control.step -= 1;
  expect_missing(control, kTestHop);
  layout::LaneHop hop = kTestHop;
  hop.layer -= layout::kBuffersPerLane;
  expect_missing(control_, hop);

  abort_.put({});
  post(4);
  windows_.put_flag(4, kTestHop.lane, kTestHop.buffer(), layout::kNoFlag);
  windows_.put_flag(4, kTestHop.lane + 1, kTestHop.buffer(), kTestHop.flag(control_));
  run(params());
  expect_gave_up(AbortReason::kTimedOut, 4);
}

TEST_F(WaitTest, AParticipantWithoutAWindowNeverArrives) {
  for (const std::uint32_t peer : {1U, 2U, 4U}) {
    post(peer);
  }
  control_.participants |= ServerMask{1} << 40;
  run(params());
  expect_gave_up(AbortReason::kTimedOut, 40);
}

TEST_F(WaitTest, AHeaderOfAnotherHopIsABadMessage) {
  for (const std::uint32_t peer : {1U, 2U, 4U}) {
    post(peer);
  }
  layout::SlotHeader header = header_of(control_, kTestHop, 3, 0);
  header.layer -= 2;
  windows_.put_header(2, kTestHop.lane, kTestHop.buffer(), header);
  run(params());
  expect_gave_up(AbortReason::kBadMessage, 2);
}

TEST_F(WaitTest, AnAnswerWithAnotherNumberOfRowsIsABadMessage) {
  for (std::uint32_t peer = 0; peer < kPeers; ++peer) {
    post(peer, 3);
  }
  WaitParams wait = params();
  wait.participants_only = false;
  DeviceArray<std::uint32_t> expected({3, 3, 3, 4, 3});
  wait.expected_rows = expected.data();
  run(wait);
  expect_gave_up(AbortReason::kBadMessage, 3);
}

TEST_F(WaitTest, TheHostsWordEndsIt) {
  timeout_ns_.put(60'000'000'000);
  abort_word_.raise();
  run(params());
  expect_gave_up(AbortReason::kHostAsked, 1);
}

TEST_F(WaitTest, EndsAtOnceIfAnotherWaitGaveUp) {
  timeout_ns_.put(60'000'000'000);
  AbortState first;
  first.aborted = 1;
  first.peer = 63;
  first.reason = AbortReason::kTimedOut;
  abort_.put(first);
  run(params());
  EXPECT_EQ(ready_.get(), 0U);
  EXPECT_EQ(abort_.get().peer, 63U);  // who was first stays
}

TEST_F(WaitTest, IsRecordedAsTheOneThatWaitsAndIsSmall) {
  timeout_ns_.put(1'000'000);
  const kernels::cuda::FootprintRecorder recorder;
  run(params());
  run(params());
  ASSERT_EQ(recorder.waiting().size(), 1U);
  EXPECT_TRUE(recorder.working().empty());
  const device::CtaFootprint& wait = recorder.waiting()[0];
  EXPECT_EQ(wait.num_threads, kMaxServers);
  EXPECT_LE(wait.registers_per_thread, 64U);
  EXPECT_LE(wait.shared_bytes, 512U);
}

/// These write while a kernel runs: not under a tool that serialises.
class ConcurrentWaitTest : public WaitTest {};

TEST_F(ConcurrentWaitTest, TakesFlagsThatComeLater) {
  timeout_ns_.put(5'000'000'000);
  post(1);
  post(2);
  const WaitParams wait = params();
  ASSERT_TRUE(launch_wait(wait, stream_));
  std::this_thread::sleep_for(std::chrono::milliseconds(2));
  EXPECT_EQ(cudaStreamQuery(stream_), cudaErrorNotReady);
  TestStream other;
  const layout::SlotHeader header = header_of(control_, kTestHop, 3, 0);
  const std::uint64_t flag = kTestHop.flag(control_);
  std::byte* slot = windows_.window(4) + layout_.grid.slot_offset(kTestHop.lane, kTestHop.buffer());
  require_cuda(cudaMemcpyAsync(slot + layout::SlotGrid::header_offset(), &header, sizeof(header),
                               cudaMemcpyHostToDevice, other),
               "header");
  require_cuda(cudaMemcpyAsync(slot + layout::SlotGrid::flag_offset(), &flag, sizeof(flag),
                               cudaMemcpyHostToDevice, other),
               "flag");
  other.wait();
  stream_.wait();
  expect_ready();
}

TEST_F(ConcurrentWaitTest, TheHostsWordEndsItWhileItSpins) {
  timeout_ns_.put(60'000'000'000);
  const WaitParams wait = params();
  ASSERT_TRUE(launch_wait(wait, stream_));
  std::this_thread::sleep_for(std::chrono::milliseconds(2));
  EXPECT_EQ(cudaStreamQuery(stream_), cudaErrorNotReady);
  abort_word_.raise();
  stream_.wait();
  expect_gave_up(AbortReason::kHostAsked, 1);
  EXPECT_LT(abort_.get().waited_ns, 5'000'000'000U);
}

}  // namespace
}  // namespace fastfd::testing
