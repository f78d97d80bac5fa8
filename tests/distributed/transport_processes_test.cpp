/// `shm` between real processes, among them such that are killed or stopped in the middle.

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <functional>
#include <vector>

#include "unit/transport_support.h"
#include "unit/transport_workload.h"

namespace fastfd::transport {
namespace {

using namespace testing_support;  // NOLINT(google-build-using-namespace)

constexpr ConnectOptions kPatient{seconds(60), nullptr};

/// A child process; killed at the end of the test if it is still there.
class Child {
 public:
  /// Runs `body` and exits; "" is success, anything else is printed.
  explicit Child(const std::function<std::string()>& body) : pid_(::fork()) {
    if (pid_ == 0) {
      const std::string problem = body();
      if (!problem.empty()) {
        std::fprintf(stderr, "child %d: %s\n", ::getpid(), problem.c_str());
      }
      ::_exit(problem.empty() ? 0 : 1);
    }
  }
  Child(Child&& other) noexcept : pid_(std::exchange(other.pid_, -1)) {}
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;
  Child& operator=(Child&&) = delete;
  ~Child() {
    if (pid_ > 0) {
      ::kill(pid_, SIGKILL);
      ::waitpid(pid_, nullptr, 0);
    }
  }

  /// Never to a pid of -1, which would be every process.
  void signal(int number) const {
    ASSERT_GT(pid_, 0);
    ::kill(pid_, number);
  }
  /// Blocks until the child has stopped itself with SIGSTOP.
  bool wait_until_stopped() const {
    int state = 0;
    return pid_ > 0 && ::waitpid(pid_, &state, WUNTRACED) == pid_ && WIFSTOPPED(state);
  }
  /// Blocks until the child has ended: its exit status, or minus the signal that killed it.
  int wait() {
    int state = 0;
    if (pid_ <= 0 || ::waitpid(std::exchange(pid_, -1), &state, 0) < 0) {
      return -1;
    }
    return WIFSIGNALED(state) ? -WTERMSIG(state) : WEXITSTATUS(state);
  }

 private:
  pid_t pid_;
};

std::string address_of(Role role, ServerRank rank, std::uint64_t incarnation = 1) {
  static const pid_t test_pid = ::getpid();
  static const std::uint64_t nonce =
      mix(static_cast<std::uint64_t>(test_pid),
          std::chrono::steady_clock::now().time_since_epoch().count());
  return fmt::format("unix:@fastfd-test-{}-{:x}-{}-{}-{}", test_pid, nonce, to_string(role), rank,
                     incarnation);
}

EndpointOptions server(Role role, ServerRank rank, const WindowShape& shape,
                       std::uint64_t incarnation = 1, std::uint32_t spin_us = 0) {
  return {role, rank, incarnation, shape, WaitPolicy{spin_us}, address_of(role, rank, incarnation)};
}

std::vector<PeerAddress> peers(Role role, std::uint32_t count) {
  std::vector<PeerAddress> result;
  for (ServerRank rank = 0; rank < count; ++rank) {
    result.push_back({rank, 1, address_of(role, rank)});
  }
  return result;
}

std::string attention_process(const Workload& load, ServerRank me, std::uint32_t spin_us) {
  ShmEndpoint endpoint(server(Role::kAttention, me, load.shape, 1, spin_us));
  const auto port =
      endpoint.connect_attention(load.epoch, peers(Role::kFfn, load.num_ffn), kPatient);
  return port ? run_attention(load, **port, me) : port.status().to_string();
}

std::string ffn_process(const Workload& load, ServerRank me, std::uint32_t spin_us) {
  ShmEndpoint endpoint(server(Role::kFfn, me, load.shape, 1, spin_us));
  const auto port =
      endpoint.connect_ffn(load.epoch, peers(Role::kAttention, load.num_attention), kPatient);
  return port ? run_ffn(load, **port, me) : port.status().to_string();
}

class Processes : public testing::TestWithParam<std::uint32_t> {};

INSTANTIATE_TEST_SUITE_P(SpinUs, Processes, testing::Values(0U, 50U));

TEST_P(Processes, RandomHopsArriveWhole) {
  Workload load;
  load.shape = small_shape(/*num_layers=*/3);
  load.num_attention = 3;
  load.num_ffn = 2;
  load.num_steps = 60;
  load.seed = 11 + GetParam();
  address_of(Role::kFfn, 0);  // fixes the nonce before the first fork
  std::vector<Child> children;
  // FFN server 1 starts last, after those who dial it.
  children.emplace_back([&] { return ffn_process(load, 0, GetParam()); });
  for (ServerRank a = 0; a < load.num_attention; ++a) {
    children.emplace_back([&, a] { return attention_process(load, a, GetParam()); });
  }
  children.emplace_back([&] { return ffn_process(load, 1, GetParam()); });
  for (Child& child : children) {
    EXPECT_EQ(child.wait(), 0);
  }
}

/// This process is attention server 0; children are FFN server 0 in one incarnation after another.
class LosingThePeer : public testing::Test {
 protected:
  static std::vector<PeerAddress> ffn_peer(std::uint64_t incarnation) {
    return {{0, incarnation, address_of(Role::kFfn, 0, incarnation)}};
  }
  /// An FFN server that connects to `epoch` and hands its port to `body`.
  Child ffn_child(Epoch epoch, std::uint64_t incarnation,
                  std::function<std::string(FfnPort&)> body) const {
    return Child([this, epoch, incarnation, body = std::move(body)]() -> std::string {
      ShmEndpoint endpoint(server(Role::kFfn, 0, shape_, incarnation));
      const auto port = endpoint.connect_ffn(epoch, peers(Role::kAttention, 1), kPatient);
      return port ? body(**port) : port.status().to_string();
    });
  }
  /// Waits for the hop and answers it.
  static std::string serve(FfnPort& port, const WindowShape& shape, const HopId& hop,
                           std::uint32_t num_rows) {
    for (;;) {
      const std::uint32_t seen = port.doorbell();
      if (port.dispatch_ready(hop, 1)) {
        break;
      }
      if (port.wait(seen, kHang) != WaitOutcome::kWoken) {
        return "nothing came";
      }
    }
    const std::string problem = check_dispatch(port, shape, 0, 0, hop, num_rows);
    send_combine(port, shape, 0, 0, hop, num_rows);
    return problem;
  }

  WindowShape shape_ = small_shape();
  ShmEndpoint endpoint_{server(Role::kAttention, 0, shape_)};
};

TEST_F(LosingThePeer, KilledPeerLeavesTheMappingsValid) {
  const HopId first{1, 1, 0, 0};
  const HopId second{1, 1, 1, 0};
  Child child = ffn_child(1, 1, [&](FfnPort& port) {
    const std::string problem = serve(port, shape_, first, 5);
    static_cast<void>(port.wait(port.doorbell(), kHang));  // the second dispatch
    ::pause();
    return problem;
  });
  auto port = endpoint_.connect_attention(1, ffn_peer(1), kPatient);
  ASSERT_TRUE(port) << port.status().to_string();
  send_dispatch(**port, shape_, 0, 0, first, 5);
  ASSERT_EQ((*port)->wait_combine(first, kHang), WaitOutcome::kReady);
  send_dispatch(**port, shape_, 0, 0, second, 4);
  child.signal(SIGKILL);
  ASSERT_EQ(child.wait(), -SIGKILL);

  EXPECT_EQ((*port)->wait_combine(second, milliseconds(20)), WaitOutcome::kTimedOut);
  EXPECT_EQ((*port)->missing_peers(second), "FFN server 0");
  EXPECT_TRUE(combine_is_right(**port, shape_, 0, 0, first, 5));
  // Its window can still be written: it is memory that nobody reads any more.
  send_dispatch(**port, shape_, 0, 0, {1, 1, 2, 0}, 9);
  (*port)->abort();
  EXPECT_EQ((*port)->wait_combine(second, kHang), WaitOutcome::kAborted);

  // The restarted server joins the next epoch.
  const HopId again{2, 2, 0, 0};
  Child restarted =
      ffn_child(2, 2, [&](FfnPort& its_port) { return serve(its_port, shape_, again, 3); });
  auto next = endpoint_.connect_attention(2, ffn_peer(2), kPatient);
  ASSERT_TRUE(next) << next.status().to_string();
  send_dispatch(**next, shape_, 0, 0, again, 3);
  EXPECT_EQ((*next)->wait_combine(again, kHang), WaitOutcome::kReady);
  EXPECT_TRUE(combine_is_right(**next, shape_, 0, 0, again, 3));
  EXPECT_EQ(restarted.wait(), 0);
}

// FAULTS 27 between processes: nothing that a resumed writer of epoch 1 does is seen in epoch 2.
TEST_F(LosingThePeer, SuspendedWriterResumesAfterTheEpochChange) {
  const HopId old_hop{1, 1, 0, 0};
  const HopId new_hop{2, 1, 0, 0};
  Child suspended = ffn_child(1, 1, [&](FfnPort& port) -> std::string {
    std::byte* rows = port.combine_buffer(0, old_hop);
    ::raise(SIGSTOP);
    fill_bytes(rows, shape_.max_lane_rows * combine_row_bytes(shape_), 0xbad);
    port.send_combine(0, old_hop, 3);
    return "";
  });
  auto old_port = endpoint_.connect_attention(1, ffn_peer(1), kPatient);
  ASSERT_TRUE(old_port) << old_port.status().to_string();
  send_dispatch(**old_port, shape_, 0, 0, old_hop, 3);
  ASSERT_TRUE(suspended.wait_until_stopped());

  Child successor = ffn_child(2, 2, [&](FfnPort& port) { return serve(port, shape_, new_hop, 3); });
  auto port = endpoint_.connect_attention(2, ffn_peer(2), kPatient);
  ASSERT_TRUE(port) << port.status().to_string();
  send_dispatch(**port, shape_, 0, 0, new_hop, 3);
  ASSERT_EQ((*port)->wait_combine(new_hop, kHang), WaitOutcome::kReady);
  ASSERT_EQ(successor.wait(), 0);

  suspended.signal(SIGCONT);
  ASSERT_EQ(suspended.wait(), 0);
  EXPECT_TRUE((*old_port)->combine_ready(old_hop));  // it did write
  EXPECT_TRUE((*port)->combine_ready(new_hop));
  EXPECT_TRUE(combine_is_right(**port, shape_, 0, 0, new_hop, 3));
}

}  // namespace
}  // namespace fastfd::transport
