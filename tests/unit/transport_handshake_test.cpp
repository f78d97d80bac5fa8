#include <fcntl.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdio>
#include <future>
#include <stdexcept>
#include <system_error>
#include <thread>

#include "transport/handshake.h"
#include "unit/transport_support.h"

namespace fastfd::transport {
namespace {

using namespace testing_support;  // NOLINT(google-build-using-namespace)
using testing::HasSubstr;
using testing::Not;

using AttentionResult = Result<std::shared_ptr<AttentionPort>>;
using FfnResult = Result<std::shared_ptr<FfnPort>>;

constexpr ConnectOptions kPatient{seconds(60), nullptr};
constexpr ConnectOptions kImpatient{milliseconds(150), nullptr};

EndpointOptions server(Role role, ServerRank rank, std::uint64_t incarnation = 1,
                       WindowShape shape = small_shape()) {
  return {role, rank, incarnation, shape, WaitPolicy{0}, ""};
}

std::future<FfnResult> answer(ShmEndpoint& endpoint, Epoch epoch, std::vector<PeerAddress> peers,
                              ConnectOptions options = kPatient) {
  return std::async(std::launch::async, [&endpoint, epoch, peers = std::move(peers), options] {
    return endpoint.connect_ffn(epoch, peers, options);
  });
}

std::future<AttentionResult> dial(ShmEndpoint& endpoint, Epoch epoch,
                                  std::vector<PeerAddress> peers,
                                  ConnectOptions options = kPatient) {
  return std::async(std::launch::async, [&endpoint, epoch, peers = std::move(peers), options] {
    return endpoint.connect_attention(epoch, peers, options);
  });
}

PeerAddress at(ServerRank rank, const ShmEndpoint& endpoint, std::uint64_t incarnation = 1) {
  return {rank, incarnation, endpoint.address()};
}

void expect_round_trip(AttentionPort& attention, FfnPort& ffn, const HopId& hop) {
  send_dispatch(attention, small_shape(), 0, 0, hop, 3);
  EXPECT_TRUE(ffn.dispatch_ready(hop, 1));
  EXPECT_EQ(check_dispatch(ffn, small_shape(), 0, 0, hop, 3), "");
  send_combine(ffn, small_shape(), 0, 0, hop, 3);
  EXPECT_EQ(attention.wait_combine(hop, kHang), WaitOutcome::kReady);
  EXPECT_TRUE(combine_is_right(attention, small_shape(), 0, 0, hop, 3));
}

class Handshake : public testing::Test {
 protected:
  ShmEndpoint attention_{server(Role::kAttention, 0)};
  ShmEndpoint ffn_{server(Role::kFfn, 0)};

  /// Both sides of one epoch.
  std::pair<std::shared_ptr<AttentionPort>, std::shared_ptr<FfnPort>> connect(Epoch epoch) {
    auto answering = answer(ffn_, epoch, {at(0, attention_)});
    AttentionResult attention =
        attention_.connect_attention(epoch, std::array{at(0, ffn_)}, kPatient);
    FfnResult ffn = answering.get();
    EXPECT_TRUE(attention) << attention.status().to_string();
    EXPECT_TRUE(ffn) << ffn.status().to_string();
    return {*attention, *ffn};
  }
};

// FAULTS 18: the order in which processes start must not matter.
TEST_F(Handshake, EitherSideMayComeFirst) {
  auto dialling = dial(attention_, 1, {at(0, ffn_)});
  std::this_thread::sleep_for(milliseconds(30));
  FfnResult ffn = ffn_.connect_ffn(1, std::array{at(0, attention_)}, kPatient);
  AttentionResult attention = dialling.get();
  ASSERT_TRUE(attention && ffn);
  expect_round_trip(**attention, **ffn, {1, 1, 0, 0});

  auto answering = answer(ffn_, 2, {at(0, attention_)});
  std::this_thread::sleep_for(milliseconds(30));
  attention = attention_.connect_attention(2, std::array{at(0, ffn_)}, kPatient);
  ffn = answering.get();
  ASSERT_TRUE(attention && ffn);
  expect_round_trip(**attention, **ffn, {2, 1, 0, 0});
}

TEST_F(Handshake, AddressMayBeKnownBeforeItListens) {
  EndpointOptions options = server(Role::kFfn, 0);
  options.address = fmt::format("unix:@fastfd-test-later-{}", ::getpid());
  auto dialling = dial(attention_, 1, {{0, 1, options.address}});
  std::this_thread::sleep_for(milliseconds(50));
  ShmEndpoint late(options);
  const FfnResult ffn = late.connect_ffn(1, std::array{at(0, attention_)}, kPatient);
  EXPECT_TRUE(ffn) << ffn.status().to_string();
  EXPECT_TRUE(dialling.get());
}

// FAULTS 8: two sides configured with different maximum tokens.
TEST_F(Handshake, OtherMaximumTokensAreRefusedOnBothSides) {
  WindowShape other = small_shape();
  other.max_lane_rows = 512;
  ShmEndpoint larger(server(Role::kAttention, 0, 1, other));
  auto answering = answer(ffn_, 1, {at(0, larger)});
  const AttentionResult attention = larger.connect_attention(1, std::array{at(0, ffn_)}, kPatient);
  const FfnResult ffn = answering.get();
  EXPECT_EQ(attention.status().code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(attention.status().message(), HasSubstr("max_lane_rows is 512 here and 9 there"));
  EXPECT_THAT(attention.status().message(), HasSubstr(ffn_.address()));
  EXPECT_EQ(ffn.status().code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(ffn.status().message(), HasSubstr("max_lane_rows is 9 here and 512 there"));
  EXPECT_THAT(ffn.status().message(), HasSubstr("attention server 0"));
}

// FAULTS 21: a wrong address waits for ever without a word.
TEST_F(Handshake, WrongAddressIsNamedWhenTimeIsUp) {
  const AttentionResult attention = attention_.connect_attention(
      3, std::array{at(0, ffn_), PeerAddress{1, 1, "unix:@fastfd-nobody"}}, kImpatient);
  EXPECT_EQ(attention.status().code(), StatusCode::kDeadlineExceeded);
  EXPECT_THAT(attention.status().message(),
              HasSubstr("FFN server 1 at unix:@fastfd-nobody (unix:@fastfd-nobody: Connection "
                        "refused)"));
  EXPECT_THAT(attention.status().message(), HasSubstr("it listens but has not answered"));
  EXPECT_THAT(attention.status().message(), HasSubstr("check that it runs on this host"));
}

TEST_F(Handshake, MissingAttentionServersAreNamed) {
  ShmEndpoint second(server(Role::kAttention, 1));
  auto dialling = dial(second, 1, {at(0, ffn_)});
  const FfnResult ffn = ffn_.connect_ffn(
      1, std::array{at(0, attention_), at(1, second), PeerAddress{2, 1, ""}}, kImpatient);
  EXPECT_EQ(ffn.status().code(), StatusCode::kDeadlineExceeded);
  EXPECT_THAT(ffn.status().message(), HasSubstr("attention server 0, attention server 2 did not"));
  EXPECT_TRUE(dialling.get());
}

TEST_F(Handshake, CancelEndsBothSides) {
  std::atomic<bool> cancel{false};
  const ConnectOptions options{seconds(60), &cancel};
  ShmEndpoint second(server(Role::kFfn, 1));
  auto dialling = dial(attention_, 1, {at(0, ffn_)}, options);
  auto answering = answer(second, 1, {at(0, attention_)}, options);
  std::this_thread::sleep_for(milliseconds(30));
  cancel = true;
  EXPECT_EQ(dialling.get().status().code(), StatusCode::kAborted);
  EXPECT_EQ(answering.get().status().code(), StatusCode::kAborted);
}

TEST_F(Handshake, WrongRankIsRefused) {
  auto answering = answer(ffn_, 1, {at(0, attention_)}, kImpatient);
  const AttentionResult attention =
      attention_.connect_attention(1, std::array{at(4, ffn_)}, kPatient);
  EXPECT_EQ(attention.status().code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(attention.status().message(),
              HasSubstr("expected FFN server 4 but met FFN server 0"));
  EXPECT_THAT(answering.get().status().message(),
              HasSubstr("expected FFN server 4 but met FFN server 0"));
}

TEST_F(Handshake, ServerThatIsNotInTheEpochIsRefusedAndTheOthersConnect) {
  ShmEndpoint stranger(server(Role::kAttention, 5));
  auto answering = answer(ffn_, 1, {at(0, attention_)});
  const AttentionResult refused = stranger.connect_attention(1, std::array{at(0, ffn_)}, kPatient);
  EXPECT_THAT(refused.status().message(), HasSubstr("attention server 5 is not in epoch 1"));
  EXPECT_TRUE(attention_.connect_attention(1, std::array{at(0, ffn_)}, kPatient));
  EXPECT_TRUE(answering.get());
}

// PROTOCOL 4: a second stream of the same rank fences the first.
TEST_F(Handshake, OlderIncarnationIsRefusedAndTheNewerConnects) {
  ShmEndpoint restarted(server(Role::kAttention, 0, /*incarnation=*/2));
  auto answering = answer(ffn_, 1, {at(0, restarted, 2)});
  const AttentionResult refused =
      attention_.connect_attention(1, std::array{at(0, ffn_)}, kPatient);
  EXPECT_EQ(refused.status().code(), StatusCode::kUnavailable);
  EXPECT_THAT(refused.status().message(),
              HasSubstr("attention server 0 is incarnation 1, the topology names incarnation 2"));
  EXPECT_TRUE(restarted.connect_attention(1, std::array{at(0, ffn_)}, kPatient));
  EXPECT_TRUE(answering.get());
}

TEST_F(Handshake, FfnServerOfAnotherIncarnationIsRefused) {
  auto answering = answer(ffn_, 1, {at(0, attention_)}, kImpatient);
  const AttentionResult attention =
      attention_.connect_attention(1, std::array{at(0, ffn_, /*incarnation=*/9)}, kPatient);
  EXPECT_EQ(attention.status().code(), StatusCode::kUnavailable);
  EXPECT_THAT(attention.status().message(), HasSubstr("names incarnation 9"));
  EXPECT_FALSE(answering.get());
}

TEST_F(Handshake, DiallerOfAnOlderEpochIsTold) {
  auto answering = answer(ffn_, 4, {at(0, attention_)});
  const AttentionResult late = attention_.connect_attention(3, std::array{at(0, ffn_)}, kPatient);
  EXPECT_EQ(late.status().code(), StatusCode::kAborted);
  EXPECT_THAT(late.status().message(), HasSubstr("connects for epoch 3, here it is epoch 4"));
  EXPECT_TRUE(attention_.connect_attention(4, std::array{at(0, ffn_)}, kPatient));
  EXPECT_TRUE(answering.get());
}

TEST_F(Handshake, DiallerOfALaterEpochIsAnsweredWhenThisServerGetsThere) {
  auto dialling = dial(attention_, 2, {at(0, ffn_)});
  const FfnResult abandoned = ffn_.connect_ffn(1, std::array{at(0, attention_)}, kImpatient);
  EXPECT_EQ(abandoned.status().code(), StatusCode::kDeadlineExceeded);
  const FfnResult ffn = ffn_.connect_ffn(2, std::array{at(0, attention_)}, kPatient);
  const AttentionResult attention = dialling.get();
  ASSERT_TRUE(attention && ffn);
  expect_round_trip(**attention, **ffn, {2, 1, 0, 0});
}

TEST_F(Handshake, DiallerThatGaveUpMayDialAgain) {
  EXPECT_FALSE(attention_.connect_attention(1, std::array{at(0, ffn_)}, kImpatient));
  const auto [attention, ffn] = connect(1);
  expect_round_trip(*attention, *ffn, {1, 1, 0, 0});
}

TEST_F(Handshake, DiallingGoesOnWhenAnAnswererGivesUp) {
  // The FFN server misses a peer, abandons its attempt and makes another one.
  std::atomic<bool> cancel{false};
  auto first = answer(ffn_, 1, {at(0, attention_), {1, 1, ""}}, {seconds(60), &cancel});
  cancel = true;
  EXPECT_FALSE(first.get());
  const auto [attention, ffn] = connect(1);
  expect_round_trip(*attention, *ffn, {1, 1, 0, 0});
}

TEST_F(Handshake, SilentAndForeignDiallersCostTheOthersNothing) {
  Result<UniqueFd> silent = connect_unix(ffn_.address());
  Result<UniqueFd> foreign = connect_unix(ffn_.address());
  ASSERT_TRUE(silent && foreign);
  const std::array<char, 8> greeting{'G', 'E', 'T', ' ', '/', ' ', 'H', '1'};
  ASSERT_TRUE(send_packet(*foreign, std::as_bytes(std::span(greeting)), {}));
  const auto [attention, ffn] = connect(1);
  expect_round_trip(*attention, *ffn, {1, 1, 0, 0});
  const Result<std::optional<ReceivedMessage>> told = receive_message(*foreign);
  ASSERT_TRUE(told && told->has_value());
  EXPECT_THAT(refusal_reason((*told)->message).message(), HasSubstr("does not speak FastFD"));
}

TEST_F(Handshake, OtherVersionIsToldBothNumbers) {
  Result<UniqueFd> socket = connect_unix(ffn_.address());
  ASSERT_TRUE(socket);
  HandshakeMessage hello = make_hello({Role::kAttention, 0, 1, small_shape()}, 1);
  hello.version = 99;
  ASSERT_TRUE(send_message(*socket, hello));
  const FfnResult ffn = ffn_.connect_ffn(1, std::array{at(0, attention_)}, kImpatient);
  EXPECT_THAT(ffn.status().message(), HasSubstr("handshake version is 2 here and 99 there"));
}

TEST_F(Handshake, HelloWithoutWindowsIsRefused) {
  Result<UniqueFd> socket = connect_unix(ffn_.address());
  ASSERT_TRUE(socket);
  ASSERT_TRUE(send_message(*socket, make_hello({Role::kAttention, 0, 1, small_shape()}, 1)));
  const FfnResult ffn = ffn_.connect_ffn(1, std::array{at(0, attention_)}, kImpatient);
  EXPECT_THAT(ffn.status().message(), HasSubstr("peer sent 0 descriptors"));
}

// PROTOCOL 4: the receiver takes a new window and leaves the old one mapped and unread.
TEST_F(Handshake, EveryEpochHasWindowsOfItsOwn) {
  const auto [old_attention, old_ffn] = connect(1);
  const auto [attention, ffn] = connect(2);
  const HopId hop{2, 1, 0, 0};
  send_dispatch(*attention, small_shape(), 0, 0, hop, 3);
  send_combine(*ffn, small_shape(), 0, 0, hop, 3);
  const HopId late{1, 1, 0, 0};
  send_dispatch(*old_attention, small_shape(), 0, 0, late, 9);
  send_combine(*old_ffn, small_shape(), 0, 0, late, 9);
  EXPECT_TRUE(old_ffn->dispatch_ready(late, 1));
  EXPECT_EQ(check_dispatch(*ffn, small_shape(), 0, 0, hop, 3), "");
  EXPECT_TRUE(combine_is_right(*attention, small_shape(), 0, 0, hop, 3));
}

TEST_F(Handshake, SurvivorsKeepTheirRanks) {
  ShmEndpoint third(server(Role::kAttention, 2));
  auto answering = answer(ffn_, 2, {at(0, attention_), at(2, third)});
  auto dialling = dial(third, 2, {at(0, ffn_)});
  const AttentionResult first = attention_.connect_attention(2, std::array{at(0, ffn_)}, kPatient);
  const AttentionResult last = dialling.get();
  const FfnResult ffn = answering.get();
  ASSERT_TRUE(first && last && ffn);
  const HopId hop{2, 1, 0, 0};
  send_dispatch(**last, small_shape(), 2, 0, hop, 4);
  EXPECT_EQ((*ffn)->num_attention_servers(), 3U);
  EXPECT_FALSE((*ffn)->dispatch_ready(hop, 0b101));
  EXPECT_EQ((*ffn)->missing_peers(hop, 0b101), "attention server 0");
  EXPECT_EQ(check_dispatch(**ffn, small_shape(), 2, 0, hop, 4), "");
}

TEST_F(Handshake, PeerListsThatMakeNoSenseAreRefused) {
  const auto code_of = [&](const std::vector<PeerAddress>& peers) {
    return attention_.connect_attention(1, peers, kImpatient).status().code();
  };
  EXPECT_EQ(code_of({}), StatusCode::kInvalidArgument);
  EXPECT_EQ(code_of({at(0, ffn_), at(0, ffn_)}), StatusCode::kInvalidArgument);
  EXPECT_EQ(code_of({at(kMaxServers, ffn_)}), StatusCode::kInvalidArgument);
  EXPECT_EQ(code_of({{0, 1, "127.0.0.1:80"}}), StatusCode::kInvalidArgument);
}

TEST(ShmAddress, SocketFileIsReplacedWhenStaleAndRemovedAtTheEnd) {
  EndpointOptions options = server(Role::kFfn, 0);
  const std::string path = testing::TempDir() + fmt::format("fastfd-{}.sock", ::getpid());
  options.address = "unix:" + path;
  {
    // A crash: the descriptor goes, the file stays.
    const Result<UniqueFd> crashed = listen_unix(options.address);
    ASSERT_TRUE(crashed);
  }
  struct stat info {};
  ASSERT_EQ(::stat(path.c_str(), &info), 0);
  {
    const ShmEndpoint endpoint(options);
    EXPECT_EQ(endpoint.address(), options.address);
    EXPECT_THROW(ShmEndpoint second(options), std::system_error);
    EXPECT_EQ(::stat(path.c_str(), &info), 0);
  }
  EXPECT_NE(::stat(path.c_str(), &info), 0);
}

TEST(ShmAddress, EndpointsRefuseWhatCannotBe) {
  EndpointOptions options = server(Role::kFfn, 0);
  options.address = "unix:relative";
  EXPECT_THROW(ShmEndpoint endpoint(options), std::invalid_argument);
  options.address = "unix:/" + std::string(200, 'x');
  EXPECT_THROW(ShmEndpoint endpoint(options), std::invalid_argument);
  EXPECT_THROW(ShmEndpoint endpoint(server(Role::kCoordinator, 0)), std::invalid_argument);
  EXPECT_THROW(ShmEndpoint endpoint(server(Role::kFfn, kMaxServers)), std::invalid_argument);
  EXPECT_THROW(ShmEndpoint endpoint(server(Role::kFfn, 0, 1, WindowShape{})),
               std::invalid_argument);
}

// Memory that could vanish under a reader would kill it with SIGBUS.
TEST(PeerMemory, OnlySealedMemoryOfTheRightLengthIsMapped) {
  constexpr std::size_t kBytes = 8192;
  const UniqueFd unsealed(::memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(::ftruncate(unsealed.get(), kBytes), 0);
  EXPECT_THAT(Mapping::map_peer(unsealed, kBytes).status().message(), HasSubstr("sealed"));

  std::FILE* file = std::tmpfile();
  ASSERT_NE(file, nullptr);
  const UniqueFd regular(::dup(::fileno(file)));
  std::fclose(file);
  ASSERT_EQ(::ftruncate(regular.get(), kBytes), 0);
  EXPECT_THAT(Mapping::map_peer(regular, kBytes).status().message(), HasSubstr("sealed"));

  const Result<SharedMemory> sealed = SharedMemory::make("test", kBytes);
  ASSERT_TRUE(sealed);
  EXPECT_THAT(Mapping::map_peer(sealed->fd, 2 * kBytes).status().message(),
              HasSubstr("8192 bytes where 16384 are expected"));
  EXPECT_TRUE(Mapping::map_peer(sealed->fd, kBytes));
  EXPECT_NE(::ftruncate(sealed->fd.get(), 0), 0);  // the owner can't change its mind
}

TEST_F(Handshake, ProcessOfAnotherUserIsRefused) {
  if (::geteuid() != 0) {
    GTEST_SKIP() << "only root can become another user";
  }
  const pid_t child = ::fork();
  if (child == 0) {
    constexpr uid_t kNobody = 65534;
    if (::setuid(kNobody) != 0) {
      ::_exit(2);
    }
    const Result<UniqueFd> socket = connect_unix(ffn_.address());
    ::_exit(socket && send_message(*socket, make_hello({Role::kAttention, 0, 1, small_shape()}, 1))
                ? 0
                : 3);
  }
  int result = 0;
  ASSERT_EQ(::waitpid(child, &result, 0), child);
  ASSERT_EQ(result, 0);
  const FfnResult ffn = ffn_.connect_ffn(1, std::array{at(0, attention_)}, kImpatient);
  EXPECT_THAT(ffn.status().message(), HasSubstr("runs as user 65534, this one as user 0"));
}

}  // namespace
}  // namespace fastfd::transport
