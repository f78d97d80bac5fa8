// Two processes on one GPU, with a window of one mapped into the other: the code path of NVLink
// peers. Runs with and without MPS (scripts/with-mps).
#include <gtest/gtest.h>

#include <chrono>
#include <optional>
#include <thread>
#include <utility>

#include "fastfd/device/cuda.h"
#include "fastfd/device/cuda_window.h"
#include "tests/gpu/peer_process.h"
#include "tests/gpu/probe.h"

namespace fastfd::testing {
namespace {

class ProcessesConcurrentTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto mapped = device::DeviceWindow::map_peer(gpu_, peer_.window_fd(), ProbeWindow::bytes());
    ASSERT_TRUE(mapped) << mapped.status().to_string();
    mapped_.emplace(std::move(*mapped));
  }

  ProbeWindow window() const { return {mapped_->data()}; }

  /// Words of the peer's payload that are not what it was told to write.
  std::uint32_t receive(std::uint32_t seed, std::uint64_t value) {
    const auto num_wrong = probe_.receive(window().channel_from_peer(), seed, value);
    EXPECT_TRUE(num_wrong) << num_wrong.status().to_string();
    return num_wrong ? *num_wrong : ProbeWindow::kNumWords;
  }

  void post(std::uint32_t seed, std::uint64_t value) {
    const Status status = probe_.post(window().channel_to_peer(), seed, value);
    EXPECT_TRUE(status) << status.to_string();
  }

  PeerProcess peer_{::testing::UnitTest::GetInstance()->current_test_info()->name()};
  device::CudaDevice gpu_ = device::CudaDevice::open(0);
  Probe probe_{gpu_};
  std::optional<device::DeviceWindow> mapped_;
};

TEST_F(ProcessesConcurrentTest, PayloadAndFlagCrossBothWays) {
  for (std::uint32_t round = 1; round <= 3; ++round) {
    post(100 + round, round);
    const PeerAnswer received = peer_.call({PeerTask::kReceive, 100 + round, round, 0});
    EXPECT_TRUE(received.is_ok) << received.message;
    EXPECT_EQ(received.num_wrong, 0U);
    const PeerAnswer posted = peer_.call({PeerTask::kPost, 200 + round, round, 0});
    EXPECT_TRUE(posted.is_ok) << posted.message;
    EXPECT_EQ(receive(200 + round, round), 0U);
  }
  peer_.send({PeerTask::kExit, 0, 0, 0});
  EXPECT_EQ(peer_.wait_for_exit(), 0);
  EXPECT_EQ(receive(203, 3), 0U) << "the window outlives its owner's clean end";
}

TEST_F(ProcessesConcurrentTest, AReaderWaitsForAWriterOfAnotherProcess) {
  // The peer's kernel is enqueued first and spins; ours writes while it does.
  peer_.send({PeerTask::kReceive, 42, 1, 0});
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  post(42, 1);
  const PeerAnswer received = peer_.receive();
  EXPECT_TRUE(received.is_ok) << received.message;
  EXPECT_EQ(received.num_wrong, 0U);
}

TEST_F(ProcessesConcurrentTest, FlagsGoBackAndForth) {
  // Without MPS the processes take turns on the GPU, at milliseconds a turn.
  const std::uint32_t num_rounds = gpu_.uses_mps() ? 10'000 : 50;
  peer_.send({PeerTask::kPingPong, 0, 1, num_rounds});
  const std::uint64_t* elapsed_ns = probe_.elapsed_ns();
  ASSERT_TRUE(launch_ping_pong({window().to_peer(), window().from_peer(), 1, num_rounds, false,
                                probe_.limits(), probe_.elapsed_ns()},
                               probe_.stream().handle()));
  ASSERT_TRUE(probe_.stream().synchronize());
  EXPECT_TRUE(peer_.receive().is_ok);
  ASSERT_NE(*elapsed_ns, 0U) << "gave up";
  std::printf("flag round trip between two processes, %s MPS: %.3f us\n",
              gpu_.uses_mps() ? "with" : "without",
              static_cast<double>(*elapsed_ns) / num_rounds / 1000.0);
}

TEST_F(ProcessesConcurrentTest, APeerKilledInMidKernelTakesNothingAlong) {
  if (gpu_.uses_mps()) {
    GTEST_SKIP() << "MPS is one fault domain: a client killed with a kernel running faults all";
  }
  ASSERT_TRUE(peer_.call({PeerTask::kPost, 7, 1, 0}).is_ok);
  const PeerAnswer spinning = peer_.call({PeerTask::kSpin, 0, 0, 0});
  ASSERT_TRUE(spinning.is_ok) << spinning.message;
  peer_.kill();
  EXPECT_EQ(receive(7, 1), 0U) << "what the dead peer wrote is still there";
  post(8, 1);
  const device::DeviceBuffer more(gpu_, 1 << 20);
  EXPECT_TRUE(gpu_.synchronize()) << "the context is unharmed";

  // A fresh incarnation brings a window of its own; the old one stays mapped.
  PeerProcess again("again");
  auto mapped = device::DeviceWindow::map_peer(gpu_, again.window_fd(), ProbeWindow::bytes());
  ASSERT_TRUE(mapped) << mapped.status().to_string();
  ASSERT_TRUE(again.call({PeerTask::kPost, 9, 1, 0}).is_ok);
  EXPECT_EQ(receive(7, 1), 0U);
  mapped_.emplace(std::move(*mapped));
  EXPECT_EQ(receive(9, 1), 0U);
}

TEST_F(ProcessesConcurrentTest, APeerThatEndsItsKernelsFirstLeavesQuietly) {
  ASSERT_TRUE(peer_.call({PeerTask::kPost, 5, 1, 0}).is_ok);
  ASSERT_TRUE(peer_.call({PeerTask::kSpin, 0, 0, 0}).is_ok);
  const PeerAnswer stopped = peer_.call({PeerTask::kAbort, 0, 0, 0});
  EXPECT_TRUE(stopped.is_ok) << stopped.message;
  peer_.send({PeerTask::kExit, 0, 0, 0});
  EXPECT_EQ(peer_.wait_for_exit(), 0);
  EXPECT_EQ(receive(5, 1), 0U);
  EXPECT_TRUE(gpu_.synchronize());
}

}  // namespace
}  // namespace fastfd::testing
