#pragma once

/// Ports of a small cluster for tests, one suite for every transport.

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "fastfd/transport/inproc.h"
#include "fastfd/transport/shm.h"

namespace fastfd::transport::testing_support {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::seconds;

/// Longer than a test may take: a wait that nobody ends is a failure, never a slow success.
inline constexpr microseconds kHang = std::chrono::hours(1);

inline WindowShape small_shape(std::uint32_t num_layers = 4) {
  WindowShape shape;
  shape.max_lane_rows = 9;
  shape.hidden_dim = 21;
  shape.max_routes_per_row = 3;
  shape.num_layers = num_layers;
  return shape;
}

enum class Kind { kInproc, kShm };

struct Cluster {
  std::vector<std::shared_ptr<AttentionPort>> attention;
  std::vector<std::shared_ptr<FfnPort>> ffn;
};

inline std::vector<PeerAddress> peers_of(const std::vector<std::unique_ptr<ShmEndpoint>>& all) {
  std::vector<PeerAddress> peers;
  for (ServerRank rank = 0; rank < all.size(); ++rank) {
    peers.push_back({rank, /*incarnation=*/1, all[rank]->address()});
  }
  return peers;
}

inline Cluster make_shm_cluster(const WindowShape& shape, std::uint32_t num_attention,
                                std::uint32_t num_ffn, WaitPolicy policy, Epoch epoch) {
  std::vector<std::unique_ptr<ShmEndpoint>> attention;
  std::vector<std::unique_ptr<ShmEndpoint>> ffn;
  for (ServerRank rank = 0; rank < num_attention; ++rank) {
    attention.push_back(std::make_unique<ShmEndpoint>(
        EndpointOptions{Role::kAttention, rank, 1, shape, policy, ""}));
  }
  for (ServerRank rank = 0; rank < num_ffn; ++rank) {
    ffn.push_back(
        std::make_unique<ShmEndpoint>(EndpointOptions{Role::kFfn, rank, 1, shape, policy, ""}));
  }
  const std::vector<PeerAddress> attention_peers = peers_of(attention);
  const std::vector<PeerAddress> ffn_peers = peers_of(ffn);
  std::vector<std::future<Result<std::shared_ptr<FfnPort>>>> answering;
  std::vector<std::future<Result<std::shared_ptr<AttentionPort>>>> dialling;
  for (auto& endpoint : attention) {
    dialling.push_back(std::async(std::launch::async, [&, server = endpoint.get()] {
      return server->connect_attention(epoch, ffn_peers);
    }));
  }
  for (auto& endpoint : ffn) {
    answering.push_back(std::async(std::launch::async, [&, server = endpoint.get()] {
      return server->connect_ffn(epoch, attention_peers);
    }));
  }
  Cluster cluster;
  for (auto& result : dialling) {
    auto port = result.get();
    EXPECT_TRUE(port) << port.status().to_string();
    cluster.attention.push_back(*port);
  }
  for (auto& result : answering) {
    auto port = result.get();
    EXPECT_TRUE(port) << port.status().to_string();
    cluster.ffn.push_back(*port);
  }
  return cluster;
}

inline Cluster make_cluster(Kind kind, const WindowShape& shape, std::uint32_t num_attention,
                            std::uint32_t num_ffn, WaitPolicy policy, Epoch epoch = 1) {
  if (kind == Kind::kShm) {
    return make_shm_cluster(shape, num_attention, num_ffn, policy, epoch);
  }
  const InprocFabric fabric(shape, num_attention, num_ffn, policy, epoch);
  Cluster cluster;
  for (ServerRank rank = 0; rank < num_attention; ++rank) {
    cluster.attention.push_back(fabric.attention_port(rank));
  }
  for (ServerRank rank = 0; rank < num_ffn; ++rank) {
    cluster.ffn.push_back(fabric.ffn_port(rank));
  }
  return cluster;
}

/// Mixes anything that tells two payloads apart (splitmix64's finaliser).
inline std::uint64_t mix(std::uint64_t seed, std::uint64_t value) {
  std::uint64_t x = seed + 0x9e3779b97f4a7c15ULL * (value + 1);
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

/// Identity of one message: pair, direction and hop.
inline std::uint64_t message_seed(const HopId& hop, ServerRank attention, ServerRank ffn,
                                  bool is_combine) {
  std::uint64_t seed = is_combine ? 1 : 0;
  for (const std::uint64_t value :
       {std::uint64_t{hop.epoch}, std::uint64_t{hop.step}, std::uint64_t{hop.layer},
        std::uint64_t{hop.lane}, std::uint64_t{attention}, std::uint64_t{ffn}}) {
    seed = mix(seed, value);
  }
  return seed;
}

inline void fill_bytes(std::byte* bytes, std::size_t num_bytes, std::uint64_t seed) {
  for (std::size_t i = 0; i < num_bytes; ++i) {
    bytes[i] = static_cast<std::byte>(mix(seed, i));
  }
}

inline bool has_bytes(const std::byte* bytes, std::size_t num_bytes, std::uint64_t seed) {
  for (std::size_t i = 0; i < num_bytes; ++i) {
    if (bytes[i] != static_cast<std::byte>(mix(seed, i))) {
      return false;
    }
  }
  return true;
}

inline std::size_t dispatch_row_bytes(const WindowShape& shape) {
  return shape.hidden_dim * dtype_bytes(shape.dispatch_dtype);
}
inline std::size_t combine_row_bytes(const WindowShape& shape) {
  return shape.hidden_dim * dtype_bytes(shape.combine_dtype);
}

/// Routes of one row, a function of the message: 0 .. max_routes_per_row.
inline std::uint32_t routes_of_row(const WindowShape& shape, std::uint64_t seed,
                                   std::uint32_t row) {
  return static_cast<std::uint32_t>(mix(seed, row) % (shape.max_routes_per_row + 1));
}

/// Writes and sends a dispatch whose every byte follows from its identity.
inline void send_dispatch(AttentionPort& port, const WindowShape& shape, ServerRank attention,
                          ServerRank ffn, const HopId& hop, std::uint32_t num_rows) {
  const std::uint64_t seed = message_seed(hop, attention, ffn, false);
  const DispatchWriter writer = port.dispatch_buffer(ffn, hop);
  fill_bytes(writer.rows, num_rows * dispatch_row_bytes(shape), seed);
  std::uint32_t num_routes = 0;
  writer.route_offsets[0] = 0;
  for (std::uint32_t row = 0; row < num_rows; ++row) {
    for (std::uint32_t i = routes_of_row(shape, seed, row); i > 0; --i) {
      writer.route_experts[num_routes] = static_cast<std::uint32_t>(seed) + num_routes;
      writer.route_weights[num_routes] = static_cast<float>(num_routes) + 0.5F;
      ++num_routes;
    }
    writer.route_offsets[row + 1] = num_routes;
  }
  port.send_dispatch(ffn, hop, num_rows, num_routes);
}

/// "" if the dispatch is what send_dispatch made.
inline std::string check_dispatch(const FfnPort& port, const WindowShape& shape,
                                  ServerRank attention, ServerRank ffn, const HopId& hop,
                                  std::uint32_t num_rows) {
  const std::uint64_t seed = message_seed(hop, attention, ffn, false);
  const DispatchReader reader = port.dispatch(attention, hop);
  if (!reader.valid) {
    return reader.problem;
  }
  if (reader.num_rows != num_rows) {
    return "rows: " + std::to_string(reader.num_rows) + " of " + std::to_string(num_rows);
  }
  if (!has_bytes(reader.rows, num_rows * dispatch_row_bytes(shape), seed)) {
    return "hidden states differ";
  }
  std::uint32_t route = 0;
  for (std::uint32_t row = 0; row < num_rows; ++row) {
    const std::uint32_t end = route + routes_of_row(shape, seed, row);
    if (reader.route_offsets[row] != route || reader.route_offsets[row + 1] != end) {
      return "route offsets differ";
    }
    for (; route < end; ++route) {
      if (reader.route_experts[route] != static_cast<std::uint32_t>(seed) + route ||
          reader.route_weights[route] != static_cast<float>(route) + 0.5F) {
        return "routes differ";
      }
    }
  }
  return route == reader.num_routes ? "" : "number of routes differs";
}

inline void send_combine(FfnPort& port, const WindowShape& shape, ServerRank attention,
                         ServerRank ffn, const HopId& hop, std::uint32_t num_rows) {
  fill_bytes(port.combine_buffer(attention, hop), num_rows * combine_row_bytes(shape),
             message_seed(hop, attention, ffn, true));
  port.send_combine(attention, hop, num_rows);
}

inline bool combine_is_right(const AttentionPort& port, const WindowShape& shape,
                             ServerRank attention, ServerRank ffn, const HopId& hop,
                             std::uint32_t num_rows) {
  return has_bytes(port.combine_rows(ffn, hop), num_rows * combine_row_bytes(shape),
                   message_seed(hop, attention, ffn, true));
}

}  // namespace fastfd::transport::testing_support
