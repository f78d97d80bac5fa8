#include "fastfd/control_plane/codec.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace fastfd::control_plane {
namespace {

/// Random values of every message; the extremes of each field turn up often.
class Generator {
 public:
  explicit Generator(std::uint32_t seed) : random_(seed) {}

  std::uint32_t below(std::uint32_t limit) {
    return std::uniform_int_distribution<std::uint32_t>(0, limit - 1)(random_);
  }
  bool coin() { return below(2) == 1; }
  std::uint32_t word() {
    switch (below(4)) {
      case 0:
        return 0;
      case 1:
        return std::numeric_limits<std::uint32_t>::max();
      default:
        return static_cast<std::uint32_t>(random_()) >> below(32);
    }
  }
  std::uint64_t long_word() { return static_cast<std::uint64_t>(word()) << 32 | word(); }
  float real() { return coin() ? 0.0F : static_cast<float>(word()) / 1e4F - 1e4F; }
  TokenId token() { return coin() ? kNoToken : static_cast<TokenId>(word() >> 1); }

  template <typename T, typename Make>
  std::vector<T> list(std::uint32_t max_count, Make make) {
    std::vector<T> values(coin() ? 0 : below(max_count + 1));
    for (auto& value : values) {
      value = make();
    }
    return values;
  }
  std::vector<std::uint32_t> words(std::uint32_t max_count) {
    return list<std::uint32_t>(max_count, [this] { return word(); });
  }
  std::vector<TokenId> tokens(std::uint32_t max_count) {
    return list<TokenId>(max_count, [this] { return token(); });
  }
  std::string text() {
    std::string bytes(below(20), '\0');
    for (auto& byte : bytes) {
      byte = static_cast<char>(below(256));
    }
    return bytes;
  }

  SamplingParams sampling() {
    SamplingParams params;
    params.temperature = real();
    params.top_p = real();
    params.top_k = static_cast<std::int32_t>(word());
    params.min_p = real();
    params.repetition_penalty = real();
    params.presence_penalty = real();
    params.frequency_penalty = real();
    params.seed = long_word();
    params.min_tokens = word();
    params.num_logprobs = static_cast<std::int32_t>(below(22)) - 1;
    params.logit_bias = list<std::pair<TokenId, float>>(
        5, [this] { return std::pair<TokenId, float>(token(), real()); });
    params.stop_token_ids = tokens(4);
    params.ignore_eos = coin();
    return params;
  }

  AttentionLanePlan lane_plan(LaneId lane) {
    AttentionLanePlan plan;
    plan.lane = lane;
    plan.participants = long_word();
    plan.num_rows = word();
    plan.row_bucket = word();
    plan.use_graph = coin();
    if (coin()) {
      plan.rows = list<DecodeRow>(40, [this] {
        return DecodeRow{word(), word(), word(), token()};
      });
    }
    plan.leaves = words(10);
    plan.opens = list<SlotOpen>(4, [this] {
      SlotOpen open{word(), word(), word(), words(30), tokens(20), tokens(30), sampling(), {}};
      if (coin()) {
        open.copy_page = PageCopy{word(), word(), word()};
      }
      return open;
    });
    plan.pages = list<PageAppend>(30, [this] { return PageAppend{word(), word()}; });
    plan.pieces = list<PrefillPiece>(
        4, [this] { return PrefillPiece{word(), word(), word(), tokens(300), words(20), coin()}; });
    return plan;
  }

  template <typename LanePlan, typename Make>
  std::vector<LanePlan> lanes(Make make) {
    std::vector<LanePlan> plans;
    for (LaneId lane = 0; lane < kMaxLanes; ++lane) {
      if (coin()) {
        plans.push_back(make(lane));
      }
    }
    return plans;
  }

  AttentionStepPlan attention_plan() {
    return {word(), long_word(),
            word(), 1 + below(kMaxLanes),
            coin(), lanes<AttentionLanePlan>([this](LaneId lane) { return lane_plan(lane); })};
  }

  FfnStepPlan ffn_plan() {
    return {word(), long_word(), word(), 1 + below(kMaxLanes),
            lanes<FfnLanePlan>([this](LaneId lane) {
              return FfnLanePlan{lane, long_word(), word(), coin(), words(kMaxServers)};
            })};
  }

  LaneResult result() {
    LaneResult result;
    result.epoch = word();
    result.step = long_word();
    result.attention_rank = below(kMaxServers);
    result.lane = below(kMaxLanes);
    const bool with_logprobs = coin();
    result.tokens = list<SampledToken>(40, [&] {
      SampledToken sampled{word(), word(), word(), token(), with_logprobs ? real() : 0.0F, {}};
      if (with_logprobs) {
        sampled.top_logprobs = list<TokenLogprob>(5, [this] {
          return TokenLogprob{token(), real()};
        });
      }
      return sampled;
    });
    result.num_rows = word();
    result.compute_us = real();
    result.wait_us = real();
    result.overlapped = coin();
    return result;
  }

  Role server_role() { return coin() ? Role::kAttention : Role::kFfn; }
  DType dtype() { return static_cast<DType>(below(4)); }

  Registration registration() {
    Registration registration{server_role(), word(), long_word(), word(), text(),
                              word(),        text(), {},          0};
    Contract& contract = registration.contract;
    contract.model_fingerprint = long_word();
    for (std::uint32_t* field :
         {&contract.num_attention_servers, &contract.num_ffn_servers, &contract.max_lane_rows,
          &contract.hidden_dim, &contract.max_routes_per_row, &contract.num_layers,
          &contract.num_pages, &contract.page_size, &contract.num_slots, &contract.max_model_len,
          &contract.num_experts, &contract.expert_replicas}) {
      *field = word();
    }
    contract.dispatch_dtype = dtype();
    contract.combine_dtype = dtype();
    contract.kv_dtype = dtype();
    contract.precision = coin() ? Precision::kFloat32 : Precision::kBFloat16;
    registration.num_pages = word();
    return registration;
  }

  Topology topology() {
    const std::uint32_t num_servers = 1 + below(kMaxServers);
    return {word(),
            list<Peer>(10,
                       [this] {
                         return Peer{server_role(), below(kMaxServers), long_word(), text()};
                       }),
            {1 + below(1000), num_servers, 1 + below(num_servers), word()}};
  }

  CoordinatorMessage coordinator_message() {
    switch (below(8)) {
      case 0:
        return Refused{text()};
      case 1:
        return topology();
      case 2:
        return Go{word()};
      case 3:
        return ffn_plan();
      case 4:
        return Stop{word(), text()};
      case 5:
        return Shutdown{};
      default:
        return attention_plan();
    }
  }

  /// Not a heartbeat, which has no equality.
  ServerMessage server_message() {
    switch (below(6)) {
      case 0:
        return registration();
      case 1:
        return Ready{word()};
      case 2:
        return StopAck{word()};
      case 3:
        return Failure{text()};
      default:
        return result();
    }
  }

 private:
  std::mt19937_64 random_;
};

TEST(Codec, CoordinatorMessagesSurviveTheRoundTrip) {
  Codec codec;  // one for all, so that leftovers of a message would show in the next
  std::string bytes;
  for (std::uint32_t seed = 0; seed < 2000; ++seed) {
    const auto message = Generator(seed).coordinator_message();
    codec.encode(message, &bytes);
    const auto decoded = codec.decode_coordinator_message(bytes);
    ASSERT_TRUE(decoded) << "seed " << seed << ": " << decoded.status().to_string();
    ASSERT_TRUE(*decoded == message) << "seed " << seed;
  }
}

TEST(Codec, ServerMessagesSurviveTheRoundTrip) {
  Codec codec;
  std::string bytes;
  for (std::uint32_t seed = 0; seed < 2000; ++seed) {
    const auto message = Generator(seed).server_message();
    codec.encode(message, &bytes);
    const auto decoded = codec.decode_server_message(bytes);
    ASSERT_TRUE(decoded) << "seed " << seed << ": " << decoded.status().to_string();
    ASSERT_EQ(decoded->index(), message.index()) << "seed " << seed;
    std::visit(
        [&](const auto& value) {
          using T = std::decay_t<decltype(value)>;
          if constexpr (!std::is_same_v<T, Heartbeat>) {
            ASSERT_TRUE(std::get<T>(*decoded) == value) << "seed " << seed;
          }
        },
        message);
  }
}

TEST(Codec, HeartbeatsSurviveTheRoundTrip) {
  Heartbeat heartbeat;
  heartbeat.progress[0] = {7, 3, true};
  heartbeat.progress[3] = {1ULL << 47, 31, false};
  heartbeat.ffn_load = FfnLoad{5, 1ULL << 40, 12, 0.5, 1e12};
  Codec codec;
  std::string bytes;
  codec.encode(ServerMessage(heartbeat), &bytes);
  const auto decoded = codec.decode_server_message(bytes);
  ASSERT_TRUE(decoded);
  const auto& copy = std::get<Heartbeat>(*decoded);
  for (LaneId lane = 0; lane < kMaxLanes; ++lane) {
    EXPECT_EQ(copy.progress[lane].step, heartbeat.progress[lane].step);
    EXPECT_EQ(copy.progress[lane].layer, heartbeat.progress[lane].layer);
    EXPECT_EQ(copy.progress[lane].waiting, heartbeat.progress[lane].waiting);
  }
  ASSERT_TRUE(copy.ffn_load.has_value());
  EXPECT_EQ(copy.ffn_load->ffn_rank, 5U);
  EXPECT_EQ(copy.ffn_load->layers_run, 1ULL << 40);
  EXPECT_EQ(copy.ffn_load->wait_us, 1e12);
}

TEST(Codec, ResultsWithoutLogprobsDontCarryThem) {
  LaneResult result;
  result.tokens.resize(1000, {1, 1, 1, 1, 0.0F, {}});
  Codec codec;
  std::string without;
  codec.encode(ServerMessage(result), &without);
  for (auto& token : result.tokens) {
    token.logprob = -1.0F;
  }
  std::string with;
  codec.encode(ServerMessage(result), &with);
  EXPECT_GE(with.size(), without.size() + 4000);
}

/// Whatever the bytes: a message or an error. Sanitizers see the rest.
TEST(Codec, HostileBytesGiveAnErrorOrAMessage) {
  Codec codec;
  std::string bytes;
  std::uint32_t num_errors = 0;
  for (std::uint32_t seed = 0; seed < 3000; ++seed) {
    Generator generator(seed);
    if (generator.coin()) {
      codec.encode(generator.coordinator_message(), &bytes);
    } else {
      codec.encode(generator.server_message(), &bytes);
    }
    for (std::uint32_t i = 0; i <= generator.below(4) && !bytes.empty(); ++i) {
      const auto at = generator.below(static_cast<std::uint32_t>(bytes.size()));
      if (generator.coin()) {
        bytes[at] = static_cast<char>(generator.below(256));
      } else {
        bytes.resize(at);
      }
    }
    num_errors += codec.decode_coordinator_message(bytes) ? 0 : 1;
    num_errors += codec.decode_server_message(bytes) ? 0 : 1;
  }
  EXPECT_GT(num_errors, 1000U);
}

/// Field numbers and packed varints by hand, to say what no encoder of ours would.
std::string field(std::uint32_t number, const std::string& payload) {
  std::string bytes(1, static_cast<char>(number << 3 | 2));
  bytes += static_cast<char>(payload.size());
  return bytes + payload;
}
std::string varint_field(std::uint32_t number, std::uint32_t value) {
  return {static_cast<char>(number << 3), static_cast<char>(value)};
}

TEST(Codec, ColumnsOfUnequalLengthAreRejected) {
  Codec codec;
  // LaneResult: two slots, one generation, one position, one token.
  const std::string result =
      field(9, "\x01\x02") + field(10, "\x01") + field(11, "\x01") + field(12, "\x01");
  const auto decoded = codec.decode_server_message(field(4, result));
  ASSERT_FALSE(decoded);
  EXPECT_EQ(decoded.status().code(), StatusCode::kInvalidArgument);
  EXPECT_NE(decoded.status().message().find("unequal length"), std::string::npos);
}

TEST(Codec, CountsThatDontAddUpAreRejected) {
  Codec codec;
  // One token that claims 100 likeliest tokens and brings one.
  const std::string top_logprob("\x00\x00\x80\x3f", 4);
  const std::string result = field(9, "\x01") + field(10, "\x01") + field(11, "\x01") +
                             field(12, "\x01") + field(14, "\x64") + field(15, "\x01") +
                             field(16, top_logprob);
  EXPECT_FALSE(codec.decode_server_message(field(4, result)));
}

TEST(Codec, LanesOutOfOrderOrRangeAreRejected) {
  Codec codec;
  const auto ffn_plan = [](std::vector<std::uint32_t> lanes) {
    std::string plan = varint_field(4, 2);  // num_lanes
    for (const std::uint32_t lane : lanes) {
      plan += field(5, varint_field(1, lane));
    }
    return field(5, plan);
  };
  EXPECT_TRUE(codec.decode_coordinator_message(ffn_plan({0, 1})));
  EXPECT_FALSE(codec.decode_coordinator_message(ffn_plan({1, 0})));
  EXPECT_FALSE(codec.decode_coordinator_message(ffn_plan({1, 1})));
  EXPECT_FALSE(codec.decode_coordinator_message(ffn_plan({kMaxLanes})));
  EXPECT_FALSE(codec.decode_coordinator_message(field(5, varint_field(4, kMaxLanes + 1))));
  EXPECT_FALSE(codec.decode_coordinator_message(""));
}

}  // namespace
}  // namespace fastfd::control_plane
