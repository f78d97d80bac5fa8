#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <numeric>

#include "gpu/moe_support.h"
#include "kernels/dispatch/op_cuda.h"

namespace fastfd::testing {
namespace {

using kernels::cuda::IndexParams;
using kernels::cuda::RouteTables;
using kernels::cuda::TokenSource;
using layout::AbortReason;

constexpr std::uint32_t kRowBytes = 256;
constexpr std::uint32_t kMaxRows = 40;   // of a window
constexpr std::uint32_t kMaxRoutes = 9;  // of a row

/// What one attention server sends: a row's routes as (local expert, weight).
using Row = std::vector<std::pair<std::uint32_t, float>>;
using Message = std::vector<Row>;

/// Rows with 1 .. top_k distinct experts, the low ones more often the more `skew`.
Message random_message(std::uint32_t num_rows, std::uint32_t num_experts, std::uint32_t top_k,
                       double skew, std::uint32_t seed) {
  std::mt19937 engine(seed);
  std::uniform_real_distribution<double> uniform(0.0, 1.0);
  Message message(num_rows);
  for (Row& row : message) {
    std::vector<std::uint32_t> experts(num_experts);
    std::iota(experts.begin(), experts.end(), 0);
    std::vector<double> key(num_experts);
    for (std::uint32_t e = 0; e < num_experts; ++e) {
      key[e] = std::pow(uniform(engine), std::pow(e + 1.0, skew));
    }
    std::sort(experts.begin(), experts.end(), [&](auto a, auto b) { return key[a] > key[b]; });
    const std::uint32_t count = 1 + engine() % std::min(top_k, num_experts);
    for (std::uint32_t i = 0; i < count; ++i) {
      row.emplace_back(experts[i], static_cast<float>(uniform(engine)));
    }
  }
  return message;
}

/// An FFN server that got one message from every peer.
class Receiver {
 public:
  Receiver(std::vector<Message> messages, std::uint32_t num_experts, std::uint32_t max_tokens,
           std::uint32_t max_routes, ServerMask participants)
      : messages_(std::move(messages)),
        num_experts_(num_experts),
        max_tokens_(max_tokens),
        max_routes_(max_routes),
        control_(test_control(0, participants)),
        windows_(static_cast<std::uint32_t>(messages_.size()), layout_.grid),
        expert_begin_(num_experts + 1),
        route_tokens_(max_routes + kGuard),
        route_weights_(max_routes + kGuard),
        token_route_begin_(max_tokens + 1),
        token_routes_(max_routes + kGuard),
        token_rows_(max_tokens + kGuard),
        token_sources_(max_tokens + kGuard),
        peer_rows_(messages_.size()) {
    device_control_.put(control_);
    for (std::uint32_t peer = 0; peer < messages_.size(); ++peer) {
      edit(peer, [&](const layout::DispatchSlot& slot) { write(slot, messages_[peer]); });
    }
  }

  static constexpr std::uint32_t kGuard = 5;  ///< elements behind a table that must stay untouched

  /// Changes a peer's message in its window.
  void edit(std::uint32_t peer, const std::function<void(const layout::DispatchSlot&)>& change) {
    std::vector<std::byte> bytes = windows_.get(peer);
    change(layout_.slot(bytes.data(), kTestHop.lane, kTestHop.buffer()));
    windows_.put(peer, bytes);
  }

  void run() {
    IndexParams params;
    params.control = device_control_.data();
    params.hop = kTestHop;
    params.ready = ready_.data();
    params.windows = windows_.pointers();
    params.num_peers = static_cast<std::uint32_t>(messages_.size());
    params.window = layout_;
    params.num_experts = num_experts_;
    params.max_tokens = max_tokens_;
    params.max_routes = max_routes_;
    params.tables = {.expert_begin = expert_begin_.data(),
                     .route_tokens = route_tokens_.data(),
                     .route_weights = route_weights_.data(),
                     .num_tokens = num_tokens_.data(),
                     .token_route_begin = token_route_begin_.data(),
                     .token_routes = token_routes_.data(),
                     .token_rows = token_rows_.data(),
                     .token_sources = token_sources_.data(),
                     .peer_rows = peer_rows_.data()};
    params.abort = abort_.data();
    const Status status = launch_index(params, stream_);
    ASSERT_TRUE(status) << status.to_string();
    stream_.wait();
    // Nobody wrote behind the tables.
    const auto untouched = [](const std::vector<std::uint32_t>& values) {
      return std::all_of(values.end() - kGuard, values.end(),
                         [](std::uint32_t value) { return value == 0xffffffffU; });
    };
    EXPECT_TRUE(untouched(route_tokens_.get()));
    EXPECT_TRUE(untouched(token_routes_.get()));
  }

  /// All lists equal those made here from the messages of the participants.
  void expect_lists() {
    std::vector<std::uint32_t> begin{0};
    std::vector<std::uint32_t> tokens;
    std::vector<float> weights;
    std::vector<std::vector<std::pair<std::uint32_t, std::uint32_t>>> by_token;  // expert, place
    std::vector<TokenSource> sources;
    for (std::uint32_t peer = 0; peer < messages_.size(); ++peer) {
      const bool participates = (control_.participants >> peer & 1) != 0;
      EXPECT_EQ(peer_rows_.get()[peer], participates ? messages_[peer].size() : 0U);
      for (std::uint32_t row = 0; participates && row < messages_[peer].size(); ++row) {
        sources.push_back({peer, row});
      }
    }
    by_token.resize(sources.size());
    for (std::uint32_t expert = 0; expert < num_experts_; ++expert) {
      for (std::uint32_t token = 0; token < sources.size(); ++token) {
        for (const auto& [id, weight] : messages_[sources[token].peer][sources[token].row]) {
          if (id == expert) {
            by_token[token].emplace_back(expert, static_cast<std::uint32_t>(tokens.size()));
            tokens.push_back(token);
            weights.push_back(weight);
          }
        }
      }
      begin.push_back(static_cast<std::uint32_t>(tokens.size()));
    }
    ASSERT_EQ(num_tokens_.get(), sources.size());
    EXPECT_EQ(expert_begin_.get(), begin);
    EXPECT_EQ(head(route_tokens_.get(), tokens.size()), tokens);
    EXPECT_EQ(head(route_weights_.get(), weights.size()), weights);
    std::uint32_t next = 0;
    const auto token_route_begin = token_route_begin_.get();
    const auto token_routes = token_routes_.get();
    const auto token_rows = token_rows_.get();
    const auto token_sources = token_sources_.get();
    for (std::uint32_t token = 0; token < sources.size(); ++token) {
      EXPECT_EQ(token_sources[token].peer, sources[token].peer);
      EXPECT_EQ(token_sources[token].row, sources[token].row);
      const layout::DispatchSlot slot =
          layout_.slot(windows_.window(sources[token].peer), kTestHop.lane, kTestHop.buffer());
      EXPECT_EQ(token_rows[token], slot.rows + std::size_t{sources[token].row} * kRowBytes);
      EXPECT_EQ(token_route_begin[token], next);
      for (const auto& [expert, place] : by_token[token]) {
        EXPECT_EQ(token_routes[next++], place);
      }
    }
    EXPECT_EQ(token_route_begin[sources.size()], next);
  }

  /// Nothing to do for the kernels behind.
  void expect_empty() {
    EXPECT_EQ(num_tokens_.get(), 0U);
    EXPECT_EQ(expert_begin_.get(), std::vector<std::uint32_t>(num_experts_ + 1, 0));
    EXPECT_EQ(token_route_begin_.get()[0], 0U);
  }

  /// Whatever was sent, the GEMM can walk what it gets.
  void expect_walkable() {
    const auto begin = expert_begin_.get();
    const auto tokens = route_tokens_.get();
    const std::uint32_t num_tokens = num_tokens_.get();
    EXPECT_EQ(begin[0], 0U);
    EXPECT_TRUE(std::is_sorted(begin.begin(), begin.end()));
    EXPECT_LE(begin.back(), max_routes_);
    for (std::uint32_t route = 0; route < begin.back(); ++route) {
      EXPECT_LT(tokens[route], num_tokens);
    }
  }

  void expect_bad_message(std::uint32_t peer) {
    const layout::AbortState abort = abort_.get();
    EXPECT_EQ(abort.aborted, 1U);
    EXPECT_EQ(abort.reason, AbortReason::kBadMessage);
    EXPECT_EQ(abort.peer, peer);
    EXPECT_EQ(abort.layer, kTestHop.layer);
    EXPECT_EQ(abort.step, control_.step);
    expect_walkable();
  }

  std::uint32_t aborted() { return abort_.get().aborted; }
  void put_ready(std::uint32_t value) { ready_.put(value); }

 private:
  template <typename T>
  static std::vector<T> head(std::vector<T> values, std::size_t count) {
    values.resize(count);
    return values;
  }

  void write(const layout::DispatchSlot& slot, const Message& message) {
    std::uint32_t next = 0;
    for (std::uint32_t row = 0; row < message.size(); ++row) {
      slot.route_offsets[row] = next;
      for (const auto& [expert, weight] : message[row]) {
        slot.route_experts[next] = expert;
        slot.route_weights[next] = weight;
        ++next;
      }
    }
    slot.route_offsets[message.size()] = next;
    *slot.header = header_of(control_, kTestHop, static_cast<std::uint32_t>(message.size()), next);
    *slot.flag = kTestHop.flag(control_);
  }

  std::vector<Message> messages_;
  std::uint32_t num_experts_;
  std::uint32_t max_tokens_;
  std::uint32_t max_routes_;
  layout::LaneControl control_;
  layout::DispatchLayout layout_ = layout::DispatchLayout::make({kMaxRows, kRowBytes, kMaxRoutes});
  Windows windows_;
  DeviceValue<layout::LaneControl> device_control_;
  DeviceValue<std::uint32_t> ready_{1};
  DeviceArray<std::uint32_t> expert_begin_;
  DeviceArray<std::uint32_t> route_tokens_;
  DeviceArray<float> route_weights_;
  DeviceValue<std::uint32_t> num_tokens_{12345};
  DeviceArray<std::uint32_t> token_route_begin_;
  DeviceArray<std::uint32_t> token_routes_;
  DeviceArray<const void*> token_rows_;
  DeviceArray<TokenSource> token_sources_;
  DeviceArray<std::uint32_t> peer_rows_;
  DeviceValue<layout::AbortState> abort_;
  TestStream stream_;
};

Message one_expert(std::uint32_t num_rows, std::uint32_t expert) {
  return Message(num_rows, Row{{expert, 0.5F}});
}

TEST(IndexTest, ListsAreThoseOfTheMessages) {
  struct Shape {
    std::vector<std::uint32_t> rows;  // of the peers
    std::uint32_t num_experts;
    std::uint32_t top_k;
    double skew;
  };
  const std::vector<Shape> shapes = {
      {{1}, 1, 1, 0.0},
      {{1}, 16, 8, 0.0},
      {{7, 0, 5}, 3, 2, 0.0},
      {{40}, 10, 8, 0.0},
      {{40, 40, 1}, 128, 8, 1.0},
      {{33, 17, 40, 9}, 64, 8, 0.5},
      {{3, 40, 40, 40, 40, 40, 40, 39}, 256, 9, 0.0},
      {{40, 40}, 5, 5, 0.0},
  };
  for (const Shape& shape : shapes) {
    std::vector<Message> messages;
    for (std::uint32_t peer = 0; peer < shape.rows.size(); ++peer) {
      messages.push_back(
          random_message(shape.rows[peer], shape.num_experts, shape.top_k, shape.skew, 100 + peer));
    }
    const ServerMask everyone = (ServerMask{1} << messages.size()) - 1;
    Receiver receiver(messages, shape.num_experts, 330, 3000, everyone);
    ASSERT_NO_FATAL_FAILURE(receiver.run());
    EXPECT_EQ(receiver.aborted(), 0U);
    receiver.expect_lists();
  }
}

TEST(IndexTest, AllTokensMayGoToOneExpert) {
  for (const std::uint32_t expert : {0U, 7U, 15U}) {
    Receiver receiver({one_expert(40, expert), one_expert(39, expert)}, 16, 79, 79, 0b11);
    ASSERT_NO_FATAL_FAILURE(receiver.run());
    EXPECT_EQ(receiver.aborted(), 0U);
    receiver.expect_lists();
  }
}

TEST(IndexTest, NobodyMaySendAnything) {
  Receiver receiver({{}, {}, {}}, 8, 64, 64, 0b101);
  ASSERT_NO_FATAL_FAILURE(receiver.run());
  EXPECT_EQ(receiver.aborted(), 0U);
  receiver.expect_lists();
  receiver.expect_empty();
}

TEST(IndexTest, WhoDoesNotParticipateIsNotRead) {
  Receiver receiver({one_expert(3, 1), one_expert(40, 9999), one_expert(5, 0)}, 4, 8, 8, 0b101);
  ASSERT_NO_FATAL_FAILURE(receiver.run());
  EXPECT_EQ(receiver.aborted(), 0U);
  receiver.expect_lists();
}

TEST(IndexTest, AWaitThatGaveUpLeavesNothingToDo) {
  Receiver receiver({one_expert(3, 1), one_expert(4, 0)}, 4, 8, 8, 0b11);
  receiver.put_ready(0);
  ASSERT_NO_FATAL_FAILURE(receiver.run());
  receiver.expect_empty();
}

TEST(IndexFaults, CountsAndOffsetsAreChecked) {
  using Change = std::function<void(const layout::DispatchSlot&)>;
  const std::vector<std::pair<const char*, Change>> changes = {
      {"rows", [](const auto& slot) { slot.header->num_rows = kMaxRows + 1; }},
      {"many rows", [](const auto& slot) { slot.header->num_rows = 0xffffffffU; }},
      {"routes", [](const auto& slot) { slot.header->num_routes += 1; }},
      {"many routes", [](const auto& slot) { slot.header->num_routes = 0xfffffff0U; }},
      {"first offset", [](const auto& slot) { slot.route_offsets[0] = 1; }},
      {"last offset", [](const auto& slot) { slot.route_offsets[6] = 0; }},
      {"backwards", [](const auto& slot) { slot.route_offsets[3] = 1; }},
      {"far offset", [](const auto& slot) { slot.route_offsets[3] = 0x80000000U; }},
      {"expert", [](const auto& slot) { slot.route_experts[4] = 4; }},
      {"no expert", [](const auto& slot) { slot.route_experts[4] = 0xffffffffU; }},
  };
  for (const auto& [what, change] : changes) {
    SCOPED_TRACE(what);
    Message message(6, Row{{0, 0.5F}, {3, 0.25F}});
    Receiver receiver({message, message, message}, 4, 24, 48, 0b111);
    receiver.edit(1, change);
    ASSERT_NO_FATAL_FAILURE(receiver.run());
    receiver.expect_bad_message(1);
  }
}

TEST(IndexFaults, MoreThanTheBucketIsABadMessage) {
  Receiver rows({one_expert(20, 0), one_expert(21, 1)}, 4, 40, 100, 0b11);
  ASSERT_NO_FATAL_FAILURE(rows.run());
  rows.expect_bad_message(1);
  rows.expect_empty();
  Receiver routes({Message(9, Row{{0, 0.5F}, {3, 0.25F}}), one_expert(3, 1)}, 4, 40, 20, 0b11);
  ASSERT_NO_FATAL_FAILURE(routes.run());
  routes.expect_bad_message(1);
  routes.expect_empty();
}

TEST(IndexFaults, RoutesThatOverlapDoNotOverflowTheLists) {
  Message message(8, Row{{0, 0.5F}, {1, 0.5F}, {2, 0.5F}});
  Receiver receiver({message}, 4, 8, 24, 0b1);
  receiver.edit(0, [](const layout::DispatchSlot& slot) {
    for (std::uint32_t row = 1; row < 8; row += 2) {
      slot.route_offsets[row] = 9;
      slot.route_offsets[row + 1] = row == 7 ? 24 : 0;
    }
  });
  ASSERT_NO_FATAL_FAILURE(receiver.run());
  receiver.expect_bad_message(0);
}

}  // namespace
}  // namespace fastfd::testing
