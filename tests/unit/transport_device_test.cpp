// The `cuda_ipc` handshake without a GPU: shared memory stands in for the GPU's.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <future>

#include "transport/device_exchange.h"
#include "transport/window_layouts.h"
#include "unit/transport_support.h"

namespace fastfd::transport {
namespace {

using namespace testing_support;  // NOLINT(google-build-using-namespace)
using testing::HasSubstr;

using DeviceResult = Result<std::shared_ptr<DevicePort>>;

constexpr ConnectOptions kPatient{seconds(60), nullptr};
constexpr ConnectOptions kImpatient{milliseconds(150), nullptr};

/// Memory of a GPU that this process's can't reach.
class FarMemoryMaker final : public BlockMaker {
 public:
  Result<OwnBlock> make(const std::string& name, std::size_t num_bytes) const override {
    return SharedMemoryMaker().make(name, num_bytes);
  }
  Result<Block> map_peer(const UniqueFd& /*fd*/, std::size_t /*num_bytes*/) const override {
    return Status(StatusCode::kUnavailable, "no peer access");
  }
};

EndpointOptions server(Role role, ServerRank rank) {
  return {role, rank, /*incarnation=*/1, small_shape(), WaitPolicy{0}, ""};
}

std::future<DeviceResult> connect(Rendezvous& rendezvous, const BlockMaker& maker, Epoch epoch,
                                  std::vector<PeerAddress> peers,
                                  const ConnectOptions& options = kPatient) {
  return std::async(std::launch::async, [&, epoch, peers = std::move(peers), options] {
    return connect_device(rendezvous, maker, epoch, peers, options);
  });
}

class DeviceHandshake : public testing::Test {
 protected:
  PeerAddress at(const Rendezvous& peer) const { return {peer.self().rank, 1, peer.address()}; }

  SharedMemoryMaker memory_;
  Rendezvous attention_{server(Role::kAttention, 0), WindowKind::kGpuMemory, "cuda:0 (here)"};
  Rendezvous ffn_{server(Role::kFfn, 2), WindowKind::kGpuMemory, "cuda:1 (there)"};
};

TEST_F(DeviceHandshake, WindowsOfAPairAreTheSameMemoryByRank) {
  auto answering = connect(ffn_, memory_, 1, {at(attention_)});
  const DeviceResult attention = connect(attention_, memory_, 1, {at(ffn_)}).get();
  const DeviceResult ffn = answering.get();
  ASSERT_TRUE(attention) << attention.status().to_string();
  ASSERT_TRUE(ffn) << ffn.status().to_string();
  const DeviceWindows& from = (*attention)->windows();
  const DeviceWindows& to = (*ffn)->windows();
  ASSERT_EQ(from.send.size(), 3U);
  ASSERT_EQ(to.send.size(), 1U);
  EXPECT_EQ(from.send[0], nullptr) << "FFN server 0 is not in the epoch";
  EXPECT_EQ(from.receive[1], nullptr);
  const std::size_t dispatch_bytes = dispatch_layout(small_shape()).bytes();
  const std::size_t combine_bytes = combine_layout(small_shape()).bytes();
  fill_bytes(from.send[2], dispatch_bytes, 1);
  fill_bytes(to.send[0], combine_bytes, 2);
  EXPECT_TRUE(has_bytes(to.receive[0], dispatch_bytes, 1));
  EXPECT_TRUE(has_bytes(from.receive[2], combine_bytes, 2));
}

TEST_F(DeviceHandshake, EveryEpochHasWindowsOfItsOwn) {
  std::vector<std::shared_ptr<DevicePort>> ports;
  for (const Epoch epoch : {1, 2}) {
    auto answering = connect(ffn_, memory_, epoch, {at(attention_)});
    const DeviceResult attention = connect(attention_, memory_, epoch, {at(ffn_)}).get();
    const DeviceResult ffn = answering.get();
    ASSERT_TRUE(attention && ffn);
    ports.push_back(*attention);
    ports.push_back(*ffn);
  }
  // A kernel of epoch 1 that stores late.
  fill_bytes(ports[0]->windows().send[2], 64, 3);
  EXPECT_TRUE(has_bytes(ports[1]->windows().receive[0], 64, 3));
  const std::vector<std::byte> zeros(64);
  EXPECT_EQ(std::memcmp(ports[3]->windows().receive[0], zeros.data(), zeros.size()), 0);
}

TEST_F(DeviceHandshake, GpusThatCanNotReachEachOtherAreBothNamed) {
  const FarMemoryMaker far;
  auto answering = connect(ffn_, memory_, 1, {at(attention_)}, kPatient);
  const DeviceResult attention = connect(attention_, far, 1, {at(ffn_)}).get();
  const DeviceResult ffn = answering.get();
  EXPECT_EQ(attention.status().code(), StatusCode::kUnavailable);
  EXPECT_THAT(attention.status().message(),
              HasSubstr("FFN server 2 has its windows on cuda:1 (there), which attention server 0 "
                        "on cuda:0 (here) can't reach: no peer access"));
  EXPECT_THAT(attention.status().message(), HasSubstr("attention.device"));
  EXPECT_EQ(ffn.status().code(), StatusCode::kUnavailable);
  EXPECT_THAT(ffn.status().message(), HasSubstr("cuda:0 (here) can't reach"));

  auto far_answering = connect(ffn_, far, 2, {at(attention_)}, kPatient);
  const DeviceResult refused = connect(attention_, memory_, 2, {at(ffn_)}).get();
  EXPECT_EQ(far_answering.get().status().code(), StatusCode::kUnavailable);
  EXPECT_EQ(refused.status().code(), StatusCode::kUnavailable);
  EXPECT_THAT(refused.status().message(),
              HasSubstr("attention server 0 has its windows on cuda:0 (here), which FFN server 2"));
}

TEST_F(DeviceHandshake, ServersOfOtherTransportsAreRefusedOnBothSides) {
  ShmEndpoint shm(server(Role::kFfn, 0));
  auto answering = std::async(
      std::launch::async, [&] { return shm.connect_ffn(1, std::array{at(attention_)}, kPatient); });
  const DeviceResult attention =
      connect(attention_, memory_, 1, {{0, 1, shm.address()}}, kPatient).get();
  EXPECT_EQ(attention.status().code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(attention.status().message(),
              HasSubstr("transport.kind is cuda_ipc here and shm there"));
  EXPECT_THAT(answering.get().status().message(),
              HasSubstr("transport.kind is shm here and cuda_ipc there"));
}

TEST_F(DeviceHandshake, MissingPeersAreNamedWithTheTransport) {
  const DeviceResult ffn = connect(ffn_, memory_, 1, {at(attention_)}, kImpatient).get();
  EXPECT_EQ(ffn.status().code(), StatusCode::kDeadlineExceeded);
  EXPECT_THAT(ffn.status().message(), HasSubstr("attention server 0 did not connect"));
  EXPECT_THAT(ffn.status().message(), HasSubstr("transport kind cuda_ipc"));
}

TEST_F(DeviceHandshake, CancelEndsTheMakingOfWindowsToo) {
  const std::atomic<bool> cancelled{true};
  const DeviceResult port =
      connect(attention_, memory_, 1, {at(ffn_)}, {seconds(60), &cancelled}).get();
  EXPECT_EQ(port.status().code(), StatusCode::kAborted);
}

}  // namespace
}  // namespace fastfd::transport
