// Which rows and routes go to which FFN server.

#include <algorithm>
#include <cstring>
#include <numeric>

#include "kernels/dispatch/op.h"
#include "kernels_support.h"

namespace fastfd::kernels::testing {
namespace {

constexpr std::int64_t kDim = 6;

// What the router gives, for `num_rows` rows.
struct Routed {
  std::int64_t num_rows = 0;
  std::int64_t top_k = 0;
  std::vector<float> hidden;          // [num_rows, kDim]
  std::vector<std::int32_t> experts;  // [num_rows, top_k]
  std::vector<float> weights;         // [num_rows, top_k]
};

Routed route(const std::vector<std::vector<std::int32_t>>& experts) {
  Routed routed;
  routed.num_rows = static_cast<std::int64_t>(experts.size());
  routed.top_k = experts.empty() ? 1 : static_cast<std::int64_t>(experts[0].size());
  for (const auto& row : experts) {
    routed.experts.insert(routed.experts.end(), row.begin(), row.end());
  }
  routed.hidden = random_floats(static_cast<std::size_t>(routed.num_rows * kDim), 1);
  routed.weights = random_floats(routed.experts.size(), 2);
  return routed;
}

// Every row wants `top_k` different experts, in no order.
Routed random_routes(std::int64_t num_rows, std::uint32_t num_experts, std::int64_t top_k,
                     std::uint32_t seed) {
  std::mt19937 engine(seed);
  std::vector<std::vector<std::int32_t>> experts;
  std::vector<std::int32_t> all(num_experts);
  std::iota(all.begin(), all.end(), 0);
  for (std::int64_t row = 0; row < num_rows; ++row) {
    std::shuffle(all.begin(), all.end(), engine);
    experts.emplace_back(all.begin(), all.begin() + top_k);
  }
  return route(experts);
}

// One FFN server's buffer. Filled with what no dispatch writes, so that a comparison of buffers
// also sees what was written beyond the rows and routes that count.
struct Buffer {
  Buffer(std::int64_t num_rows, std::int64_t top_k)
      : rows(static_cast<std::size_t>(num_rows * kDim) * sizeof(float), std::byte{0xEE}),
        route_offsets(static_cast<std::size_t>(num_rows + 1), 7777),
        route_experts(static_cast<std::size_t>(num_rows * top_k), 7777),
        route_weights(static_cast<std::size_t>(num_rows * top_k), 7777.0F) {}

  DispatchTarget target() {
    return {.rows = rows.data(),
            .route_offsets = route_offsets.data(),
            .route_experts = route_experts.data(),
            .route_weights = route_weights.data(),
            .num_rows = 5,  // of the lane before
            .num_routes = 5};
  }
  friend bool operator==(const Buffer&, const Buffer&) = default;

  std::vector<std::byte> rows;
  std::vector<std::uint32_t> route_offsets;
  std::vector<std::uint32_t> route_experts;
  std::vector<float> route_weights;
};

// Buffers of all servers of a placement, and what a dispatch made of them.
class Dispatched {
 public:
  Dispatched(const Routed& routed, const ExpertPlacement& placement, ServerRank attention_rank = 0,
             DType dtype = DType::kFloat32)
      : routed_(routed),
        buffers(placement.num_servers(), Buffer(routed.num_rows, routed.top_k)),
        row_index(placement.num_servers() * static_cast<std::size_t>(routed.num_rows), -7777) {
    for (Buffer& buffer : buffers) {
      targets.push_back(buffer.target());
    }
    params = {.num_rows = routed.num_rows,
              .hidden_dim = kDim,
              .top_k = routed.top_k,
              .hidden = routed.hidden.data(),
              .experts = routed.experts.data(),
              .weights = routed.weights.data(),
              .dtype = dtype,
              .placement = &placement,
              .attention_rank = attention_rank,
              .targets = targets,
              .row_index = row_index.data()};
  }
  Dispatched(const Dispatched&) = delete;
  Dispatched& operator=(const Dispatched&) = delete;

  std::vector<std::uint32_t> experts(ServerRank rank) const {
    const auto& all = buffers[rank].route_experts;
    return {all.begin(), all.begin() + targets[rank].num_routes};
  }
  std::vector<float> weights(ServerRank rank) const {
    const auto& all = buffers[rank].route_weights;
    return {all.begin(), all.begin() + targets[rank].num_routes};
  }
  std::vector<std::uint32_t> offsets(ServerRank rank) const {
    const auto& all = buffers[rank].route_offsets;
    return {all.begin(), all.begin() + targets[rank].num_rows + 1};
  }
  std::vector<std::int32_t> indices(ServerRank rank) const {
    const auto first = row_index.begin() + rank * routed_.num_rows;
    return {first, first + routed_.num_rows};
  }
  // Whether entry `index` of a server's buffer holds `row`, as float32.
  bool holds(ServerRank rank, std::int64_t index, std::int64_t row) const {
    return std::memcmp(buffers[rank].rows.data() + index * kDim * sizeof(float),
                       routed_.hidden.data() + row * kDim, kDim * sizeof(float)) == 0;
  }

 private:
  const Routed& routed_;

 public:
  std::vector<Buffer> buffers;
  std::vector<DispatchTarget> targets;
  std::vector<std::int32_t> row_index;
  DispatchParams params;
};

using Ids = std::vector<std::uint32_t>;
using Indices = std::vector<std::int32_t>;

// 10 experts on 3 servers: 0-3, 4-6, 7-9.
TEST(DispatchTest, ARowGoesOnceToEachServerThatHasARouteOfIt) {
  const auto placement = ExpertPlacement::contiguous(10, 3, 1);
  const Routed routed = route({{9, 0, 7, 1}, {3, 2, 1, 0}, {8, 4, 6, 5}, {0, 9, 5, 8}});
  const auto weight = [&](std::int64_t row, std::int64_t k) {
    return routed.weights[static_cast<std::size_t>(row * 4 + k)];
  };
  Dispatched sent(routed, placement);
  ASSERT_TRUE(launch_dispatch(sent.params).is_ok());

  EXPECT_EQ(sent.indices(0), (Indices{0, 1, -1, 2}));
  EXPECT_EQ(sent.offsets(0), (Ids{0, 2, 6, 7}));
  EXPECT_EQ(sent.experts(0), (Ids{0, 1, 3, 2, 1, 0, 0}));
  EXPECT_EQ(sent.weights(0), (std::vector{weight(0, 1), weight(0, 3), weight(1, 0), weight(1, 1),
                                          weight(1, 2), weight(1, 3), weight(3, 0)}));
  EXPECT_EQ(sent.indices(1), (Indices{-1, -1, 0, 1}));
  EXPECT_EQ(sent.offsets(1), (Ids{0, 3, 4}));
  EXPECT_EQ(sent.experts(1), (Ids{0, 2, 1, 1}));
  EXPECT_EQ(sent.weights(1), (std::vector{weight(2, 1), weight(2, 2), weight(2, 3), weight(3, 2)}));
  EXPECT_EQ(sent.indices(2), (Indices{0, -1, 1, 2}));
  EXPECT_EQ(sent.offsets(2), (Ids{0, 2, 3, 5}));
  EXPECT_EQ(sent.experts(2), (Ids{2, 0, 1, 2, 1}));
  EXPECT_EQ(sent.weights(2),
            (std::vector{weight(0, 0), weight(0, 2), weight(2, 0), weight(3, 1), weight(3, 3)}));
  for (ServerRank rank = 0; rank < 3; ++rank) {
    const auto indices = sent.indices(rank);
    for (std::int64_t row = 0; row < 4; ++row) {
      const std::int32_t index = indices[static_cast<std::size_t>(row)];
      EXPECT_TRUE(index < 0 || sent.holds(rank, index, row)) << "server " << rank;
    }
  }
}

TEST(DispatchTest, EqualsTheReference) {
  struct Case {
    std::uint32_t num_experts;
    std::uint32_t num_servers;
    std::uint32_t num_replicas;
    std::int64_t top_k;
  };
  for (const Case& c : {Case{16, 1, 1, 4}, Case{10, 3, 1, 4}, Case{16, 3, 2, 4}, Case{8, 5, 5, 1},
                        Case{3, 4, 1, 2}, Case{64, 4, 3, 8}, Case{5, 2, 1, 5}}) {
    const auto placement =
        ExpertPlacement::contiguous(c.num_experts, c.num_servers, c.num_replicas);
    for (const std::int64_t num_rows : {0, 1, 2, 33}) {
      for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
        for (ServerRank attention_rank = 0; attention_rank < 3; ++attention_rank) {
          const Routed routed = random_routes(num_rows, c.num_experts, c.top_k, 3);
          Dispatched actual(routed, placement, attention_rank, dtype);
          Dispatched expected(routed, placement, attention_rank, dtype);
          ASSERT_TRUE(launch_dispatch(actual.params).is_ok());
          reference_dispatch(expected.params);
          EXPECT_EQ(actual.row_index, expected.row_index);
          for (ServerRank rank = 0; rank < c.num_servers; ++rank) {
            EXPECT_EQ(actual.targets[rank].num_rows, expected.targets[rank].num_rows);
            EXPECT_EQ(actual.targets[rank].num_routes, expected.targets[rank].num_routes);
            EXPECT_TRUE(actual.buffers[rank] == expected.buffers[rank])
                << c.num_experts << " experts, server " << rank << " of " << c.num_servers << ", "
                << num_rows << " rows from attention server " << attention_rank;
          }
        }
      }
    }
  }
}

// Two copies of 4 experts on 2 servers: every server has all of them.
TEST(DispatchTest, TheAttentionServerDecidesWhichReplicaARowUses) {
  const auto placement = ExpertPlacement::contiguous(4, 2, 2);
  const Routed routed = route({{0, 1}, {3, 2}});
  for (ServerRank attention_rank = 0; attention_rank < 2; ++attention_rank) {
    Dispatched sent(routed, placement, attention_rank);
    ASSERT_TRUE(launch_dispatch(sent.params).is_ok());
    const ServerRank home_of_low = attention_rank;
    const ServerRank home_of_high = 1 - attention_rank;
    EXPECT_EQ(sent.experts(home_of_low), (Ids{0, 1}));
    EXPECT_EQ(sent.indices(home_of_low), (Indices{0, -1}));
    EXPECT_EQ(sent.experts(home_of_high), (Ids{3, 2}));
    EXPECT_EQ(sent.indices(home_of_high), (Indices{-1, 0}));
  }
}

TEST(DispatchTest, WithoutRowsEveryServerGetsAnEmptyMessage) {
  const auto placement = ExpertPlacement::contiguous(10, 3, 1);
  const Routed routed = route({});
  Dispatched sent(routed, placement);
  ASSERT_TRUE(launch_dispatch(sent.params).is_ok());
  for (ServerRank rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(sent.targets[rank].num_rows, 0U);
    EXPECT_EQ(sent.targets[rank].num_routes, 0U);
    EXPECT_EQ(sent.offsets(rank), Ids{0});
  }
}

TEST(DispatchTest, AnExpertThatDoesNotExistIsAnError) {
  const auto placement = ExpertPlacement::contiguous(10, 3, 1);
  for (const std::int32_t wrong : {-1, 10}) {
    const Routed routed = route({{0, 9}, {4, wrong}});
    Dispatched sent(routed, placement);
    const Status status = launch_dispatch(sent.params);
    EXPECT_EQ(status.code(), StatusCode::kInternal) << wrong;
    EXPECT_NE(status.to_string().find(std::to_string(wrong)), std::string::npos)
        << status.to_string();
  }
}

}  // namespace
}  // namespace fastfd::kernels::testing
