/// What transport nccl does without a GPU: ranks, lengths of messages, hand-out of ids.

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <random>
#include <thread>

#include "transport/nccl_ranks.h"
#include "transport/nccl_rendezvous.h"
#include "transport/slot_parts.h"
#include "transport/tcp_socket.h"
#include "unit/transport_support.h"

namespace fastfd::transport {
namespace {

using namespace testing_support;  // NOLINT(google-build-using-namespace)
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

NcclMember member(Role role, ServerRank rank, std::uint64_t incarnation = 1,
                  std::string address = "") {
  return {role, rank, incarnation, std::move(address)};
}

// ---- ranks ----

TEST(NcclRanksTest, AttentionServersComeFirstAndBothAscend) {
  const std::vector<NcclMember> members = {member(Role::kFfn, 1), member(Role::kAttention, 1),
                                           member(Role::kFfn, 0), member(Role::kAttention, 0)};
  const auto ranks = NcclRanks::make(members, 2, 2);
  ASSERT_TRUE(ranks) << ranks.status().to_string();
  EXPECT_EQ(ranks->num_ranks(), 4);
  EXPECT_EQ(ranks->rank_of(Role::kAttention, 0), 0);
  EXPECT_EQ(ranks->rank_of(Role::kAttention, 1), 1);
  EXPECT_EQ(ranks->rank_of(Role::kFfn, 0), 2);
  EXPECT_EQ(ranks->rank_of(Role::kFfn, 1), 3);
}

TEST(NcclRanksTest, WhoIsNotInTheEpochLeavesNoGap) {
  const std::vector<NcclMember> members = {member(Role::kAttention, 1), member(Role::kAttention, 3),
                                           member(Role::kFfn, 2)};
  const auto ranks = NcclRanks::make(members, 4, 4);
  ASSERT_TRUE(ranks) << ranks.status().to_string();
  EXPECT_EQ(ranks->num_ranks(), 3);
  EXPECT_EQ(ranks->rank_of(Role::kAttention, 3), 1);
  EXPECT_EQ(ranks->rank_of(Role::kFfn, 2), 2);
  EXPECT_FALSE(ranks->contains(Role::kAttention, 0));
  EXPECT_FALSE(ranks->contains(Role::kFfn, 3));
  EXPECT_THAT(ranks->servers(Role::kAttention), ElementsAre(1, 3));
  EXPECT_EQ(describe_servers(Role::kAttention, ranks->servers(Role::kAttention)),
            "attention servers 1, 3");
  EXPECT_EQ(describe_servers(Role::kFfn, ranks->servers(Role::kFfn)), "FFN server 2");
}

TEST(NcclRanksTest, RefusesMembersThatMakeNoSense) {
  const auto refuses = [](const std::vector<NcclMember>& members, const char* why) {
    const auto ranks = NcclRanks::make(members, 2, 2);
    EXPECT_EQ(ranks.status().code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(ranks.status().message(), HasSubstr(why));
  };
  const auto a0 = member(Role::kAttention, 0);
  const auto f0 = member(Role::kFfn, 0);
  refuses({a0}, "servers of both roles");
  refuses({f0}, "servers of both roles");
  refuses({a0, f0, f0}, "FFN server 0 is twice");
  refuses({a0, f0, member(Role::kAttention, 2)}, "attention server 2");
  refuses({a0, f0, member(Role::kCoordinator, 0)}, "no server");
}

// ---- lengths of messages ----

/// Every byte that a message of `rows` rows needs is in one of the parts.
bool covers(const SlotParts& parts, std::size_t offset, std::size_t num_bytes) {
  return num_bytes == 0 || std::any_of(parts.begin(), parts.end(), [&](const SlotPart& part) {
           return part.offset <= offset && offset + num_bytes <= part.offset + part.num_bytes;
         });
}

void expect_inside(const SlotParts& parts, const layout::SlotGrid& grid,
                   const layout::LaneHop& hop) {
  std::size_t at = grid.slot_offset(hop.lane, hop.buffer());
  const std::size_t end = at + grid.slot_bytes;
  for (const SlotPart& part : parts) {
    EXPECT_GE(part.offset, at);
    EXPECT_GT(part.num_bytes, 0U);
    at = part.offset + part.num_bytes;
  }
  EXPECT_LE(at, end);
}

TEST(SlotPartsTest, HoldAllThatAMessageOfSoManyRowsWrites) {
  std::mt19937 engine(7);
  const auto draw = [&](std::uint32_t low, std::uint32_t high) {
    return std::uniform_int_distribution<std::uint32_t>(low, high)(engine);
  };
  for (int round = 0; round < 300; ++round) {
    const layout::WindowDims dims{draw(1, 700), 16 * draw(1, 600), draw(1, 12)};
    const auto window = layout::DispatchLayout::make(dims);
    const layout::LaneHop hop{draw(0, kMaxLanes - 1), draw(0, 9), 10};
    const std::uint32_t rows = draw(0, dims.max_rows);
    const std::size_t slot = window.grid.slot_offset(hop.lane, hop.buffer());
    const SlotParts parts = dispatch_parts(window, hop, rows);
    const std::size_t routes = std::size_t{rows} * dims.max_routes_per_row;
    EXPECT_TRUE(covers(parts, slot, sizeof(layout::FlagLine) + sizeof(layout::SlotHeader)));
    EXPECT_TRUE(covers(parts, slot + window.rows_offset(), std::size_t{rows} * dims.row_bytes));
    EXPECT_TRUE(covers(parts, slot + window.route_offsets_offset, (rows + 1) * 4));
    EXPECT_TRUE(covers(parts, slot + window.route_experts_offset, routes * 4));
    EXPECT_TRUE(covers(parts, slot + window.route_weights_offset, routes * 4));
    expect_inside(parts, window.grid, hop);

    const auto back = layout::CombineLayout::make({dims.max_rows, dims.row_bytes, 0});
    const SlotParts answer = combine_parts(back, hop, rows);
    ASSERT_EQ(answer.size(), 1U);
    EXPECT_EQ(*answer.begin(), (SlotPart{back.grid.slot_offset(hop.lane, hop.buffer()),
                                         256 + std::size_t{rows} * dims.row_bytes}));
    expect_inside(answer, back.grid, hop);
  }
}

TEST(SlotPartsTest, FewRowsAreFewBytesHoweverLargeTheWindow) {
  const auto window = layout::DispatchLayout::make({4096, 4096, 8});
  const layout::LaneHop hop{1, 3, 48};
  const SlotParts parts = dispatch_parts(window, hop, 4);
  std::size_t sent = 0;
  for (const SlotPart& part : parts) {
    sent += part.num_bytes;
  }
  EXPECT_EQ(parts.size(), 4U);
  EXPECT_EQ(sent, 256U + 4 * 4096 + 5 * 4 + 2 * 4 * 8 * 4);
}

TEST(SlotPartsTest, PartsThatNearlyTouchAreOne) {
  const auto window = layout::DispatchLayout::make({16, 2048, 4});
  const layout::LaneHop hop{0, 0, 2};
  EXPECT_EQ(dispatch_parts(window, hop, 16).size(), 1U);
  // More rows than the window has are as many as it has: a bucket may be rounded up beyond it.
  EXPECT_EQ(*dispatch_parts(window, hop, 20).begin(), *dispatch_parts(window, hop, 16).begin());
}

// ---- addresses ----

TEST(TcpAddressTest, TakesNamesNumbersAndBrackets) {
  const auto name = parse_tcp_address("tcp:gpu-node-3:7400");
  ASSERT_TRUE(name);
  EXPECT_EQ(name->host, "gpu-node-3");
  EXPECT_EQ(name->port, "7400");
  const auto ipv6 = parse_tcp_address("tcp:[fe80::1]:0");
  ASSERT_TRUE(ipv6);
  EXPECT_EQ(ipv6->host, "fe80::1");
}

TEST(TcpAddressTest, RefusesOthersByName) {
  for (const char* address : {"", "tcp:", "tcp:host", "tcp::1", "tcp:host:", "tcp:host:65536",
                              "tcp:host:x", "tcp:fe80::1:80", "unix:@name", "host:80"}) {
    const auto parsed = parse_tcp_address(address);
    EXPECT_EQ(parsed.status().code(), StatusCode::kInvalidArgument) << address;
    EXPECT_THAT(parsed.status().message(), HasSubstr("tcp:HOST:PORT"));
  }
}

TEST(TcpAddressTest, ListensWhereAHostIsReached) {
  const auto address = listen_address_towards("127.0.0.1");
  ASSERT_TRUE(address) << address.status().to_string();
  EXPECT_EQ(*address, "tcp:127.0.0.1:0");
  EXPECT_EQ(listen_address_towards("no such host").status().code(), StatusCode::kUnavailable);
}

// ---- hand-out of ids ----

constexpr ConnectOptions kPatient{seconds(60), nullptr};
constexpr ConnectOptions kImpatient{milliseconds(200), nullptr};

LocalServer server(Role role, ServerRank rank, std::uint64_t incarnation = 1) {
  return {role, rank, incarnation, small_shape()};
}

std::vector<NcclId> some_ids(std::size_t count) {
  std::vector<NcclId> ids(count);
  for (std::size_t i = 0; i < count; ++i) {
    ids[i].fill(static_cast<std::byte>(i + 1));
  }
  return ids;
}

class NcclRendezvousTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto listener = listen_tcp("tcp:127.0.0.1:0");
    ASSERT_TRUE(listener) << listener.status().to_string();
    listener_ = std::move(*listener);
    members_ = {member(Role::kAttention, 0, 1, listener_.address), member(Role::kAttention, 1, 5),
                member(Role::kFfn, 0, 6, "tcp:127.0.0.1:9")};
  }

  std::future<Status> hand_out(Epoch epoch, ConnectOptions options = kPatient) {
    return std::async(std::launch::async, [this, epoch, options] {
      return hand_out_ids(maker_, listener_, epoch, members_, ids_, Deadline(options), waiting_);
    });
  }

  std::future<Result<std::vector<NcclId>>> fetch(LocalServer self, Epoch epoch,
                                                 ConnectOptions options = kPatient,
                                                 std::uint32_t num_ids = 8) {
    return std::async(std::launch::async, [this, self, epoch, options, num_ids] {
      return fetch_ids(self, epoch, members_[0], num_ids, Deadline(options));
    });
  }

  LocalServer maker_ = server(Role::kAttention, 0);
  TcpListener listener_;
  std::vector<NcclMember> members_;
  std::vector<NcclId> ids_ = some_ids(8);
  std::vector<NcclCall> waiting_;
};

TEST_F(NcclRendezvousTest, EveryMemberGetsTheSameIds) {
  auto first = fetch(server(Role::kFfn, 0, 6), 3);  // before the maker is there
  std::this_thread::sleep_for(milliseconds(30));
  auto made = hand_out(3);
  auto second = fetch(server(Role::kAttention, 1, 5), 3);
  for (auto* fetched : {&first, &second}) {
    const auto ids = fetched->get();
    ASSERT_TRUE(ids) << ids.status().to_string();
    EXPECT_EQ(*ids, ids_);
  }
  const Status status = made.get();
  EXPECT_TRUE(status) << status.to_string();
}

TEST_F(NcclRendezvousTest, WhoIsEarlyForTheNextEpochWaitsForIt) {
  auto early = fetch(server(Role::kAttention, 1, 5), 4);
  auto made = hand_out(3, kImpatient);
  auto other = fetch(server(Role::kFfn, 0, 6), 3);
  EXPECT_TRUE(other.get());
  const Status status = made.get();
  EXPECT_EQ(status.code(), StatusCode::kDeadlineExceeded);
  EXPECT_THAT(status.message(), HasSubstr("attention server 1"));
  auto next = hand_out(4);
  EXPECT_TRUE(early.get());
  EXPECT_TRUE(fetch(server(Role::kFfn, 0, 6), 4).get());
  EXPECT_TRUE(next.get());
}

TEST_F(NcclRendezvousTest, AMissingMemberIsNamedWithItsAddress) {
  auto made = hand_out(3, kImpatient);
  EXPECT_TRUE(fetch(server(Role::kAttention, 1, 5), 3).get());
  const Status status = made.get();
  EXPECT_EQ(status.code(), StatusCode::kDeadlineExceeded);
  EXPECT_THAT(status.message(),
              AllOf(HasSubstr("FFN server 0 at tcp:127.0.0.1:9"), HasSubstr("epoch 3"),
                    HasSubstr("200 ms"), testing::Not(HasSubstr("attention server 1"))));
}

TEST_F(NcclRendezvousTest, AMissingMakerIsNamedWithItsAddress) {
  const auto silent = fetch(server(Role::kFfn, 0, 6), 3, kImpatient).get();
  EXPECT_EQ(silent.status().code(), StatusCode::kDeadlineExceeded);
  EXPECT_THAT(silent.status().message(),
              AllOf(HasSubstr("attention server 0 at " + listener_.address),
                    HasSubstr("listens but has not answered")));
  listener_.socket.reset();
  const auto absent = fetch(server(Role::kFfn, 0, 6), 3, kImpatient).get();
  EXPECT_EQ(absent.status().code(), StatusCode::kDeadlineExceeded);
  EXPECT_THAT(absent.status().message(), HasSubstr("refused"));
}

TEST_F(NcclRendezvousTest, RefusesOldEpochsAndOtherIncarnationsAndGoesOn) {
  auto made = hand_out(3);
  const auto late = fetch(server(Role::kFfn, 0, 6), 2).get();
  EXPECT_EQ(late.status().code(), StatusCode::kAborted);
  EXPECT_THAT(late.status().message(), HasSubstr("epoch 3"));
  const auto replaced = fetch(server(Role::kFfn, 0, 7), 3).get();
  EXPECT_EQ(replaced.status().code(), StatusCode::kUnavailable);
  EXPECT_THAT(replaced.status().message(), HasSubstr("incarnation"));
  const auto stranger = fetch(server(Role::kFfn, 1, 6), 3).get();
  EXPECT_EQ(stranger.status().code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(stranger.status().message(), HasSubstr("FFN server 1 is not in epoch 3"));
  EXPECT_TRUE(fetch(server(Role::kFfn, 0, 6), 3).get());
  EXPECT_TRUE(fetch(server(Role::kAttention, 1, 5), 3).get());
  EXPECT_TRUE(made.get());
}

TEST_F(NcclRendezvousTest, OtherShapesAndLanesAreErrorsOnBothSides) {
  auto made = hand_out(3);
  LocalServer other = server(Role::kFfn, 0, 6);
  other.shape.hidden_dim *= 2;
  const auto refused = fetch(other, 3).get();
  EXPECT_EQ(refused.status().code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(refused.status().message(), HasSubstr("hidden_dim"));
  EXPECT_EQ(made.get().code(), StatusCode::kInvalidArgument);

  auto again = hand_out(3, kImpatient);
  const auto lanes = fetch(server(Role::kFfn, 0, 6), 3, kPatient, 4).get();
  EXPECT_EQ(lanes.status().code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(lanes.status().message(), HasSubstr("8 communicators where 4"));
  EXPECT_EQ(again.get().code(), StatusCode::kDeadlineExceeded);
}

TEST_F(NcclRendezvousTest, StrangersAtThePortDoNotMatter) {
  auto made = hand_out(3);
  const auto stranger = dial_tcp(listener_.address);
  ASSERT_TRUE(stranger);
  std::this_thread::sleep_for(milliseconds(20));
  const std::vector<std::byte> noise(sizeof(HandshakeMessage), std::byte{'x'});
  EXPECT_TRUE(send_bytes(*stranger, noise));
  EXPECT_TRUE(fetch(server(Role::kFfn, 0, 6), 3).get());
  EXPECT_TRUE(fetch(server(Role::kAttention, 1, 5), 3).get());
  EXPECT_TRUE(made.get());
}

TEST_F(NcclRendezvousTest, BothSidesCanBeCancelled) {
  std::atomic<bool> cancel{false};
  const ConnectOptions options{seconds(60), &cancel};
  auto made = hand_out(3, options);
  auto fetched = fetch(server(Role::kFfn, 0, 6), 4, options);
  std::this_thread::sleep_for(milliseconds(30));
  cancel.store(true);
  EXPECT_EQ(made.get().code(), StatusCode::kAborted);
  EXPECT_EQ(fetched.get().status().code(), StatusCode::kAborted);
}

}  // namespace
}  // namespace fastfd::transport
