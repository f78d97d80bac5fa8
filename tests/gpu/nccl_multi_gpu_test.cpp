/// Transport nccl between servers with a GPU each, as threads of one process.

#include <cuda_runtime.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <future>
#include <memory>
#include <thread>
#include <vector>

#include "fastfd/device/cuda.h"
#include "fastfd/transport/nccl.h"
#include "gpu/device_array.h"
#include "kernels/layout/lane_control.h"
#include "transport/slot_parts.h"
#include "transport/window_layouts.h"

namespace fastfd::testing {
namespace {

using ::testing::HasSubstr;
using transport::combine_parts;
using transport::ConnectOptions;
using transport::DevicePort;
using transport::dispatch_parts;
using transport::NcclEndpoint;
using transport::NcclMember;
using transport::SlotPart;
using transport::SlotParts;
using transport::WindowShape;

/// Nothing may be loaded, and no queue be shared, under a kernel that waits (PROTOCOL 5).
const bool kIsConfigured = setenv("CUDA_MODULE_LOADING", "EAGER", 1) == 0 &&
                           setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 1) == 0;

constexpr std::uint32_t kLanes = 2;
constexpr ConnectOptions kPatient{std::chrono::seconds(60), nullptr};

WindowShape shape() {
  return {.max_lane_rows = 200,
          .hidden_dim = 1024,
          .max_routes_per_row = 4,
          .num_layers = 3,
          .dispatch_dtype = DType::kBFloat16,
          .combine_dtype = DType::kBFloat16};
}

using PortResult = Result<std::shared_ptr<DevicePort>>;

/// A server on GPU `gpu`.
struct Server {
  Server(Role server_role, ServerRank server_rank, std::uint32_t gpu, std::uint32_t num_attention,
         std::uint32_t num_ffn)
      : role(server_role),
        rank(server_rank),
        device(device::CudaDevice::open(gpu)),
        stream(device),
        abort_word(device, sizeof(std::uint32_t)),
        endpoint(device, {.role = server_role,
                          .rank = server_rank,
                          .incarnation = 1,
                          .shape = shape(),
                          .num_attention_servers = num_attention,
                          .num_ffn_servers = num_ffn,
                          .num_lanes = kLanes,
                          .address = "tcp:127.0.0.1:0"}) {}

  NcclMember member() const { return {role, rank, 1, endpoint.address()}; }

  std::future<PortResult> connect(Epoch epoch, std::vector<NcclMember> members,
                                  ConnectOptions options = kPatient) {
    return std::async(std::launch::async, [this, epoch, members = std::move(members), options] {
      return endpoint.connect(epoch, members, options);
    });
  }

  void use(std::shared_ptr<DevicePort> connected, Epoch epoch) {
    port = std::move(connected);
    port->use_abort_word(abort_word.as<std::uint32_t>());
    port->begin_epoch(epoch);
  }

  Role role;
  ServerRank rank;
  device::CudaDevice device;
  device::DeviceStream stream;
  device::PinnedBuffer abort_word;
  NcclEndpoint endpoint;
  std::shared_ptr<DevicePort> port;
};

/// Attention servers and one FFN server, each on the next GPU.
class NcclServersTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(kIsConfigured);
    if (const Status status = transport::nccl_availability(); !status) {
      GTEST_SKIP() << status.message();
    }
    int num_gpus = 0;
    if (cudaGetDeviceCount(&num_gpus) != cudaSuccess || num_gpus < 2) {
      GTEST_SKIP() << "NCCL needs a GPU for every server: there are " << num_gpus;
    }
    const auto num_attention = static_cast<std::uint32_t>(std::min(num_gpus, 4) - 1);
    for (ServerRank rank = 0; rank < num_attention; ++rank) {
      servers_.push_back(std::make_unique<Server>(Role::kAttention, rank, rank, num_attention, 1U));
    }
    servers_.push_back(std::make_unique<Server>(Role::kFfn, 0U, num_attention, num_attention, 1U));
  }

  void TearDown() override {
    // Side by side, as processes would.
    std::vector<std::jthread> threads;
    for (auto& server : servers_) {
      threads.emplace_back([&server] {
        if (server->port != nullptr) {
          server->port->abort();
        }
      });
    }
  }

  std::vector<NcclMember> members() const {
    std::vector<NcclMember> all;
    for (const auto& server : servers_) {
      all.push_back(server->member());
    }
    return all;
  }

  void connect(Epoch epoch) {
    std::vector<std::future<PortResult>> ports;
    for (auto& server : servers_) {
      ports.push_back(server->connect(epoch, members()));
    }
    for (std::size_t i = 0; i < servers_.size(); ++i) {
      PortResult port = ports[i].get();
      ASSERT_TRUE(port) << port.status().to_string();
      servers_[i]->use(*std::move(port), epoch);
    }
  }

  Server& ffn() { return *servers_.back(); }
  Server& attention(ServerRank rank) { return *servers_[rank]; }
  std::uint32_t num_attention() const { return static_cast<std::uint32_t>(servers_.size() - 1); }

  std::vector<std::unique_ptr<Server>> servers_;
};

std::vector<std::byte> pattern(std::size_t num_bytes, std::uint32_t seed) {
  std::vector<std::byte> bytes(num_bytes);
  for (std::size_t i = 0; i < num_bytes; ++i) {
    bytes[i] = static_cast<std::byte>((i * 31 + i / 255 + seed * 17) % 253 + 1);
  }
  return bytes;
}

void put(std::byte* window, const std::vector<std::byte>& bytes) {
  require_cuda(cudaMemcpy(window, bytes.data(), bytes.size(), cudaMemcpyDefault), "put");
}

/// The parts hold what was sent, and all else is still 0 where nothing else was received.
void expect_parts(const std::byte* window, const std::vector<std::byte>& sent,
                  const SlotParts& parts) {
  std::vector<std::byte> here(sent.size());
  require_cuda(cudaMemcpy(here.data(), window, here.size(), cudaMemcpyDefault), "get");
  std::vector<std::byte> expected(sent.size(), std::byte{0});
  for (const SlotPart& part : parts) {
    std::memcpy(expected.data() + part.offset, sent.data() + part.offset, part.num_bytes);
  }
  EXPECT_TRUE(here == expected);
}

TEST_F(NcclServersTest, MessagesOfEveryLengthGoBothWaysOverEpochs) {
  const auto dispatch = transport::dispatch_layout(shape());
  const auto combine = transport::combine_layout(shape());
  const std::vector<std::uint32_t> buckets = {1, 160, 256};  // beyond the window: all of it
  for (Epoch epoch = 1; epoch <= 2; ++epoch) {
    ASSERT_NO_FATAL_FAILURE(connect(epoch));
    const layout::LaneHop hop{epoch % kLanes, epoch, shape().num_layers};
    FfnLanePlan plan{.lane = hop.lane};
    std::vector<std::jthread> threads;
    for (ServerRank rank = 0; rank < num_attention(); ++rank) {
      plan.participants |= ServerMask{1} << rank;
      plan.participant_buckets.push_back(buckets[rank]);
      put(attention(rank).port->windows().send[0], pattern(dispatch.bytes(), rank));
      put(ffn().port->windows().send[rank], pattern(combine.bytes(), 10 + rank));
      threads.emplace_back([&, rank] {
        Server& server = attention(rank);
        ASSERT_TRUE(server.device.make_current());
        ASSERT_TRUE(server.port->send_dispatch(hop, buckets[rank], server.stream.handle()));
        ASSERT_TRUE(server.port->receive_combine(hop, buckets[rank], server.stream.handle()));
        ASSERT_TRUE(server.stream.synchronize());
      });
    }
    ASSERT_TRUE(ffn().device.make_current());
    Status status = ffn().port->receive_dispatch(hop, plan, ffn().stream.handle());
    ASSERT_TRUE(status) << status.to_string();
    status = ffn().port->send_combine(hop, plan, ffn().stream.handle());
    ASSERT_TRUE(status) << status.to_string();
    ASSERT_TRUE(ffn().stream.synchronize());
    threads.clear();
    for (ServerRank rank = 0; rank < num_attention(); ++rank) {
      expect_parts(ffn().port->windows().receive[rank], pattern(dispatch.bytes(), rank),
                   dispatch_parts(dispatch, hop, buckets[rank]));
      expect_parts(attention(rank).port->windows().receive[0], pattern(combine.bytes(), 10 + rank),
                   combine_parts(combine, hop, buckets[rank]));
      EXPECT_TRUE(attention(rank).port->health());
    }
    TearDown();
  }
}

TEST_F(NcclServersTest, OnlyParticipantsSendAndAreAnswered) {
  if (num_attention() < 2) {
    GTEST_SKIP() << "needs 3 GPUs";
  }
  ASSERT_NO_FATAL_FAILURE(connect(1));
  const layout::LaneHop hop{0, 0, shape().num_layers};
  const FfnLanePlan plan{.lane = 0, .participants = 0b10, .participant_buckets = {8}};
  std::jthread sender([&] {
    Server& server = attention(1);
    ASSERT_TRUE(server.device.make_current());
    ASSERT_TRUE(server.port->send_dispatch(hop, 8, server.stream.handle()));
    ASSERT_TRUE(server.port->receive_combine(hop, 8, server.stream.handle()));
    ASSERT_TRUE(server.stream.synchronize());
  });
  ASSERT_TRUE(ffn().device.make_current());
  ASSERT_TRUE(ffn().port->receive_dispatch(hop, plan, ffn().stream.handle()));
  ASSERT_TRUE(ffn().port->send_combine(hop, plan, ffn().stream.handle()));
  EXPECT_TRUE(ffn().stream.synchronize());
}

TEST_F(NcclServersTest, AbortEndsReceivesThatNobodyAnswers) {
  ASSERT_NO_FATAL_FAILURE(connect(1));
  ASSERT_TRUE(ffn().device.make_current());
  const FfnLanePlan plan{.lane = 0, .participants = 1, .participant_buckets = {16}};
  // The combine's group queues behind the dispatch's, which waits.
  for (std::uint32_t layer = 0; layer < 3; ++layer) {
    const layout::LaneHop hop{0, layer, shape().num_layers};
    ASSERT_TRUE(ffn().port->receive_dispatch(hop, plan, ffn().stream.handle()));
    ASSERT_TRUE(ffn().port->send_combine(hop, plan, ffn().stream.handle()));
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  const auto idle = ffn().stream.is_idle();
  ASSERT_TRUE(idle);
  EXPECT_FALSE(*idle);
  const auto start = std::chrono::steady_clock::now();
  std::jthread([&] { ffn().port->abort(); }).join();
  EXPECT_TRUE(ffn().stream.synchronize());
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(10));
  EXPECT_EQ(*ffn().abort_word.as<std::uint32_t>(), 1U);
  const Status after = ffn().port->receive_dispatch({0, 0, 3}, plan, ffn().stream.handle());
  EXPECT_EQ(after.code(), StatusCode::kAborted);
}

TEST_F(NcclServersTest, APlanThatDoesNotFitTheEpochIsAnError) {
  ASSERT_NO_FATAL_FAILURE(connect(1));
  const auto problem = [&](const FfnLanePlan& plan) {
    const layout::LaneHop hop{plan.lane, 0, shape().num_layers};
    const Status status = ffn().port->receive_dispatch(hop, plan, ffn().stream.handle());
    EXPECT_EQ(status.code(), StatusCode::kInternal);
    return status.message();
  };
  EXPECT_THAT(problem({.lane = 0, .participants = 1}), HasSubstr("0 buckets for 1 participants"));
  EXPECT_THAT(problem({.lane = kLanes, .participants = 1, .participant_buckets = {1}}),
              HasSubstr("lane 2"));
  EXPECT_THAT(problem({.lane = 0, .participants = ServerMask{1} << 40, .participant_buckets = {1}}),
              HasSubstr("attention server 40"));
  EXPECT_FALSE(ffn().port->allows_graphs());
}

TEST_F(NcclServersTest, AServerThatNeverComesIsNamed) {
  const ConnectOptions impatient{std::chrono::milliseconds(500), nullptr};
  const PortResult of_maker = attention(0).connect(1, members(), impatient).get();
  EXPECT_EQ(of_maker.status().code(), StatusCode::kDeadlineExceeded);
  EXPECT_THAT(of_maker.status().message(), HasSubstr("FFN server 0"));
  const PortResult of_ffn = ffn().connect(1, members(), impatient).get();
  EXPECT_EQ(of_ffn.status().code(), StatusCode::kDeadlineExceeded);
  EXPECT_THAT(of_ffn.status().message(), HasSubstr("attention server 0"));
}

}  // namespace
}  // namespace fastfd::testing
