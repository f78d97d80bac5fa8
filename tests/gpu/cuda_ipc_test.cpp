// `cuda_ipc` between real processes that share a GPU: kernels of one store into the other's
// windows. This process is attention server 0; children are FFN servers. Runs with and without MPS
// (scripts/with-mps).
#include "fastfd/transport/cuda_ipc.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <thread>
#include <utility>
#include <vector>

#include "tests/gpu/child_process.h"
#include "tests/gpu/probe.h"
#include "transport/window_layouts.h"

namespace fastfd::transport {
namespace {

using fastfd::testing::ChildProcess;
using fastfd::testing::Probe;
using fastfd::testing::ProbeChannel;
using fastfd::testing::receive_value;
using fastfd::testing::require;
using fastfd::testing::send_value;
using ::testing::HasSubstr;

constexpr char kFlag[] = "--ipc-server";
constexpr std::uint32_t kRows = 64;
constexpr ConnectOptions kPatient{std::chrono::seconds(30), nullptr};

WindowShape shape_of(std::uint32_t max_lane_rows) {
  WindowShape shape;
  shape.max_lane_rows = max_lane_rows;
  shape.hidden_dim = 1024;
  shape.max_routes_per_row = 8;
  shape.num_layers = 4;
  return shape;
}

EndpointOptions options_of(Role role, ServerRank rank, std::uint64_t incarnation,
                           std::uint32_t max_lane_rows) {
  return {role, rank, incarnation, shape_of(max_lane_rows), WaitPolicy{}, ""};
}

/// Where the tests put a flag and words in a window, which is plain memory to them.
ProbeChannel channel_in(std::byte* window) {
  constexpr std::size_t kPayloadOffset = 4096;
  return {reinterpret_cast<std::uint64_t*>(window),
          reinterpret_cast<std::uint32_t*>(window + kPayloadOffset), 16384};
}
/// A word of the window that stays zero.
const std::uint64_t* silent_flag(std::byte* window) {
  return reinterpret_cast<const std::uint64_t*>(window + 256);
}

enum class Task : std::uint32_t {
  kConnect,  ///< exchange windows with attention server 0; the port before goes
  kPost,     ///< write `seed` into the attention server's window
  kReceive,  ///< count what is wrong in its own
  kSpin,     ///< start a wait that nobody ends; answers once it runs
  kEndSpin,
  kExit,  ///< no answer
};

struct Command {
  Task task = Task::kExit;
  Epoch epoch = 0;
  std::uint64_t incarnation = 0;  ///< of attention server 0
  std::uint32_t seed = 0;
  std::uint64_t value = 0;
};

struct Answer {
  StatusCode code = StatusCode::kOk;
  std::uint32_t num_wrong = 0;
  char text[1024] = {};  ///< what went wrong; first of all: the endpoint's address

  Status status() const { return {code, text}; }
};

/// An FFN server, in a process of its own.
class Child {
 public:
  Child(UniqueFd socket, ServerRank rank, std::uint64_t incarnation, std::uint32_t max_lane_rows)
      : socket_(std::move(socket)),
        endpoint_(gpu_, options_of(Role::kFfn, rank, incarnation, max_lane_rows)) {
    answer({StatusCode::kOk, endpoint_.address()}, 0);
  }

  void serve() {
    Command command;
    while (receive_value(socket_, command, std::chrono::seconds(120)) &&
           command.task != Task::kExit) {
      std::uint32_t num_wrong = 0;
      const Status status = run(command, num_wrong);
      answer(status, num_wrong);
    }
  }

 private:
  Status run(const Command& command, std::uint32_t& num_wrong) {
    if (command.task == Task::kConnect) {
      const PeerAddress peer{0, command.incarnation, ""};
      auto port = endpoint_.connect(command.epoch, std::span(&peer, 1), kPatient);
      if (port) {
        port_ = std::move(*port);
      }
      return port.status();
    }
    const DeviceWindows& windows = port_->windows();
    switch (command.task) {
      case Task::kPost:
        return probe_.post(channel_in(windows.send[0]), command.seed, command.value);
      case Task::kReceive: {
        const auto result =
            probe_.receive(channel_in(windows.receive[0]), command.seed, command.value);
        num_wrong = result ? *result : 0;
        return result.status();
      }
      case Task::kSpin:
        return probe_.spin(silent_flag(windows.receive[0]));
      case Task::kEndSpin:
        return probe_.end_spin();
      default:
        return Status::ok();
    }
  }

  void answer(const Status& status, std::uint32_t num_wrong) {
    Answer answer;
    answer.code = status.code();
    answer.num_wrong = num_wrong;
    std::snprintf(answer.text, sizeof(answer.text), "%s", status.message().c_str());
    send_value(socket_, answer);
  }

  UniqueFd socket_;
  device::CudaDevice gpu_ = device::CudaDevice::open(0);
  Probe probe_{gpu_};
  DeviceEndpoint endpoint_;
  std::shared_ptr<DevicePort> port_;
};

/// The same, seen from this process.
class FfnProcess {
 public:
  explicit FfnProcess(ServerRank rank, std::uint64_t incarnation = 1,
                      std::uint32_t max_lane_rows = kRows)
      : rank_(rank),
        incarnation_(incarnation),
        child_("ipc-" + std::to_string(rank) + "-" + std::to_string(incarnation), kFlag,
               {std::to_string(rank), std::to_string(incarnation), std::to_string(max_lane_rows)}),
        address_(receive().text) {}

  PeerAddress peer() const { return {rank_, incarnation_, address_}; }
  void send(const Command& command) { send_value(child_.socket(), command); }
  Answer receive() {
    Answer answer;
    if (!receive_value(child_.socket(), answer, std::chrono::seconds(60))) {
      throw std::runtime_error("the FFN server's process does not answer; its error is above");
    }
    return answer;
  }
  /// Expects success.
  std::uint32_t call(const Command& command) {
    send(command);
    const Answer answer = receive();
    EXPECT_TRUE(answer.status()) << answer.status().to_string();
    return answer.num_wrong;
  }
  void kill() { child_.kill(); }
  int end() {
    send({Task::kExit});
    return child_.wait_for_exit();
  }

 private:
  ServerRank rank_;
  std::uint64_t incarnation_;
  ChildProcess child_;
  std::string address_;
};

class CudaIpcConcurrentTest : public ::testing::Test {
 protected:
  using Port = std::shared_ptr<DevicePort>;

  void SetUp() override {
    const std::size_t needed = 4096 + 16384 * sizeof(std::uint32_t);
    ASSERT_GE(
        std::min(dispatch_layout(shape_of(kRows)).bytes(), combine_layout(shape_of(kRows)).bytes()),
        needed);
  }

  Port connect(Epoch epoch, FfnProcess& ffn) {
    ffn.send({Task::kConnect, epoch, kIncarnation});
    const PeerAddress peer = ffn.peer();
    auto port = endpoint_.connect(epoch, std::span(&peer, 1), kPatient);
    const Answer answer = ffn.receive();
    EXPECT_TRUE(port) << port.status().to_string();
    EXPECT_TRUE(answer.status()) << answer.status().to_string();
    return port ? *port : nullptr;
  }

  void post(const Port& port, ServerRank rank, std::uint32_t seed, std::uint64_t value) {
    const Status status = probe_.post(channel_in(port->windows().send[rank]), seed, value);
    EXPECT_TRUE(status) << status.to_string();
  }
  std::uint32_t receive(const Port& port, ServerRank rank, std::uint32_t seed,
                        std::uint64_t value) {
    const auto num_wrong = probe_.receive(channel_in(port->windows().receive[rank]), seed, value);
    EXPECT_TRUE(num_wrong) << num_wrong.status().to_string();
    return num_wrong ? *num_wrong : UINT32_MAX;
  }
  /// A hop there and one back.
  void expect_round_trip(const Port& port, FfnProcess& ffn, ServerRank rank, std::uint32_t seed,
                         std::uint64_t value) {
    post(port, rank, seed, value);
    EXPECT_EQ(ffn.call({Task::kReceive, 0, 0, seed, value}), 0U);
    ffn.call({Task::kPost, 0, 0, seed + 1, value});
    EXPECT_EQ(receive(port, rank, seed + 1, value), 0U);
  }

  static constexpr std::uint64_t kIncarnation = 5;
  device::CudaDevice gpu_ = device::CudaDevice::open(0);
  Probe probe_{gpu_};
  DeviceEndpoint endpoint_{gpu_, options_of(Role::kAttention, 0, kIncarnation, kRows)};
};

TEST_F(CudaIpcConcurrentTest, KernelsStoreIntoEachOthersWindows) {
  FfnProcess ffn(0);
  const Port port = connect(1, ffn);
  ASSERT_TRUE(port);
  for (std::uint32_t round = 1; round <= 3; ++round) {
    expect_round_trip(port, ffn, 0, 100 * round, round);
  }
  EXPECT_EQ(ffn.end(), 0);
  EXPECT_EQ(receive(port, 0, 301, 3), 0U) << "the window outlives the process that wrote it";
}

TEST_F(CudaIpcConcurrentTest, EveryEpochHasWindowsOfItsOwn) {
  FfnProcess ffn(0);
  Port old_port = connect(1, ffn);
  ASSERT_TRUE(old_port);
  expect_round_trip(old_port, ffn, 0, 100, 1);
  const Port port = connect(2, ffn);
  ASSERT_TRUE(port);
  EXPECT_NE(port->windows().receive[0], old_port->windows().receive[0]);
  expect_round_trip(port, ffn, 0, 200, 1);
  // The peer let go of epoch 1: what is stored there now is nobody's.
  post(old_port, 0, 900, 9);
  EXPECT_EQ(ffn.call({Task::kReceive, 0, 0, 200, 1}), 0U);
  EXPECT_EQ(receive(old_port, 0, 101, 1), 0U);
  // The control stream's thread, which made no GPU current, may let go of a port.
  std::thread([&old_port] { old_port.reset(); }).join();
  expect_round_trip(port, ffn, 0, 300, 2);
}

TEST_F(CudaIpcConcurrentTest, AKilledPeerLeavesTheWindowsValid) {
  Port old_port;
  {
    FfnProcess ffn(0);
    old_port = connect(1, ffn);
    ASSERT_TRUE(old_port);
    expect_round_trip(old_port, ffn, 0, 100, 1);
    if (!gpu_.uses_mps()) {
      ffn.call({Task::kSpin});  // under MPS, dying with a kernel running takes all clients along
    }
    ffn.kill();
  }
  EXPECT_EQ(receive(old_port, 0, 101, 1), 0U) << "what the dead peer wrote is still there";
  post(old_port, 0, 110, 2);

  FfnProcess again(0, /*incarnation=*/2);
  const Port port = connect(2, again);
  ASSERT_TRUE(port);
  expect_round_trip(port, again, 0, 200, 1);
  EXPECT_EQ(receive(old_port, 0, 101, 1), 0U) << "and no new window lies there";
  old_port.reset();
  expect_round_trip(port, again, 0, 300, 2);
  EXPECT_TRUE(gpu_.synchronize()) << "the context is unharmed";
}

// PROTOCOL 5: no host call under a resident spin may synchronise. Those of another process may.
TEST_F(CudaIpcConcurrentTest, WindowsAreExchangedWhileAThirdServersKernelWaits) {
  FfnProcess waiting(0);
  const Port first = connect(1, waiting);
  ASSERT_TRUE(first);
  waiting.call({Task::kSpin});
  FfnProcess other(1);
  const Port port = connect(2, other);
  ASSERT_TRUE(port);
  EXPECT_EQ(port->windows().send[0], nullptr);
  expect_round_trip(port, other, 1, 100, 1);
  waiting.call({Task::kEndSpin});
  EXPECT_EQ(waiting.end(), 0);
  EXPECT_EQ(other.end(), 0);
}

TEST_F(CudaIpcConcurrentTest, AnotherIncarnationIsRefused) {
  FfnProcess ffn(0, /*incarnation=*/3);
  ffn.send({Task::kConnect, 1, kIncarnation});
  PeerAddress peer = ffn.peer();
  peer.incarnation = 9;
  const auto port = endpoint_.connect(1, std::span(&peer, 1), kPatient);
  EXPECT_EQ(port.status().code(), StatusCode::kUnavailable);
  EXPECT_THAT(port.status().message(),
              HasSubstr("FFN server 0 is incarnation 3, the topology names incarnation 9"));
  EXPECT_THAT(port.status().message(), HasSubstr(peer.address));
  EXPECT_FALSE(ffn.receive().status());
  const Port next = connect(2, ffn);
  ASSERT_TRUE(next) << "a refusal harms nothing";
  expect_round_trip(next, ffn, 0, 100, 1);
}

TEST_F(CudaIpcConcurrentTest, AnotherShapeIsRefusedOnBothSides) {
  FfnProcess ffn(0, 1, 2 * kRows);
  ffn.send({Task::kConnect, 1, kIncarnation});
  const PeerAddress peer = ffn.peer();
  const auto port = endpoint_.connect(1, std::span(&peer, 1), kPatient);
  EXPECT_EQ(port.status().code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(port.status().message(), HasSubstr("max_lane_rows is 64 here and 128 there"));
  const Status theirs = ffn.receive().status();
  EXPECT_EQ(theirs.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(theirs.message(), HasSubstr("max_lane_rows is 128 here and 64 there"));
}

TEST_F(CudaIpcConcurrentTest, ADeadPeerIsNamedWhenTimeIsUp) {
  FfnProcess ffn(0);
  const PeerAddress peer = ffn.peer();
  ffn.kill();
  const ConnectOptions impatient{std::chrono::milliseconds(200), nullptr};
  const auto port = endpoint_.connect(1, std::span(&peer, 1), impatient);
  EXPECT_EQ(port.status().code(), StatusCode::kDeadlineExceeded);
  EXPECT_THAT(port.status().message(), HasSubstr("FFN server 0 at " + peer.address));
  EXPECT_THAT(port.status().message(), HasSubstr("transport kind cuda_ipc"));
}

}  // namespace

/// RANK INCARNATION MAX_LANE_ROWS
void serve_as_child(UniqueFd socket, std::span<char*> arguments) {
  if (arguments.size() != 3) {
    throw std::invalid_argument("an FFN server's process takes rank, incarnation and rows");
  }
  Child(std::move(socket), static_cast<ServerRank>(std::stoul(arguments[0])),
        std::stoull(arguments[1]), static_cast<std::uint32_t>(std::stoul(arguments[2])))
      .serve();
}

}  // namespace fastfd::transport

int main(int argc, char** argv) {
  fastfd::device::set_cuda_environment();
  if (const auto status = fastfd::testing::run_as_child(argc, argv, fastfd::transport::kFlag,
                                                        fastfd::transport::serve_as_child)) {
    return *status;
  }
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
