#pragma once

/// What travels between coordinator and servers, as plain values; proto/fastfd/v1/cluster.proto is
/// the form on the wire. Step plans and lane results are those of core.

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "fastfd/core/dtype.h"
#include "fastfd/core/expert_placement.h"
#include "fastfd/core/ids.h"
#include "fastfd/core/server_loop.h"
#include "fastfd/core/step_plan.h"

namespace fastfd::control_plane {

/// Grows with every incompatible change of the wire form or of the rules around it.
inline constexpr std::uint32_t kProtocolVersion = 5;

/// Limit of one message, both directions: a plan is a few KiB, the first one of an epoch a few MiB.
inline constexpr int kMaxMessageBytes = 64 << 20;

/// Most KV pages of an attention server: a wrong number must not cost the coordinator its memory.
inline constexpr std::uint32_t kMaxPages = 1U << 24;

/// Everything that all processes of a cluster must agree on; compared at the handshake.
struct Contract {
  std::uint32_t protocol_version = kProtocolVersion;
  std::uint64_t model_fingerprint = 0;
  std::uint32_t num_attention_servers = 1;
  std::uint32_t num_ffn_servers = 1;
  // Window shape (transport::WindowShape).
  std::uint32_t max_lane_rows = 0;
  std::uint32_t hidden_dim = 0;
  std::uint32_t max_routes_per_row = 0;
  std::uint32_t num_layers = 0;
  DType dispatch_dtype = DType::kBFloat16;
  DType combine_dtype = DType::kFloat32;
  Precision precision = Precision::kBFloat16;
  // KV cache of each attention server.
  std::uint32_t num_pages = 0;  ///< 0: each says in its registration what it has room for
  std::uint32_t page_size = 0;  ///< tokens
  DType kv_dtype = DType::kBFloat16;
  std::uint32_t num_slots = 0;
  std::uint32_t max_model_len = 0;  ///< tokens
  // Expert placement: what each FFN server loads.
  std::uint32_t num_experts = 0;
  std::uint32_t expert_replicas = 1;
  friend bool operator==(const Contract&, const Contract&) = default;
};

/// A server introduces itself.
struct Registration {
  Role role = Role::kAttention;  ///< kAttention or kFfn
  ServerRank rank = 0;
  std::uint64_t incarnation = 0;  ///< random, drawn once a process
  std::uint32_t pid = 0;          ///< in its own PID namespace
  /// What makes the pid a proof: host, namespace and start time of the process. Empty: the process
  /// can't be killed by its number.
  std::string process_key;
  /// Highest epoch this process was told of, by any coordinator: the next one must be higher, or
  /// windows would take old flags for new ones.
  Epoch last_epoch = 0;
  std::string data_plane_address;
  Contract contract;
  /// KV pages that this attention server has room for. Read where contract.num_pages is 0.
  std::uint32_t num_pages = 0;
  friend bool operator==(const Registration&, const Registration&) = default;
};

/// "attention server 1", "FFN server 0"
std::string member_name(Role role, ServerRank rank);

/// Empty if `theirs` may join a cluster of `ours`; else every difference, naming both values, and
/// the remedy. Rank and role are checked as well, and that pages which an attention server
/// registers hold the longest sequence.
std::string why_refused(const Contract& ours, const Registration& theirs);

struct Ready {
  Epoch epoch = 0;
  friend bool operator==(const Ready&, const Ready&) = default;
};

struct StopAck {
  Epoch next_epoch = 0;
  friend bool operator==(const StopAck&, const StopAck&) = default;
};

struct Heartbeat {
  ServerProgress progress{};
  std::optional<FfnLoad> ffn_load;
};

/// The server's own loop gave up: the epoch is over, the process lives.
struct Failure {
  std::string message;
  friend bool operator==(const Failure&, const Failure&) = default;
};

/// Arguments of ExpertPlacement::contiguous.
struct PlacementSpec {
  std::uint32_t num_experts = 1;
  std::uint32_t num_servers = 1;
  std::uint32_t num_replicas = 1;
  std::uint32_t version = 1;

  /// Throws std::invalid_argument as ExpertPlacement::contiguous does.
  ExpertPlacement make() const {
    return ExpertPlacement::contiguous(num_experts, num_servers, num_replicas, version);
  }
  friend bool operator==(const PlacementSpec&, const PlacementSpec&) = default;
};

struct Peer {
  Role role = Role::kAttention;
  ServerRank rank = 0;
  std::uint64_t incarnation = 0;  ///< another one than before: a new process, with new windows
  std::string data_plane_address;
  friend bool operator==(const Peer&, const Peer&) = default;
};

/// Who takes part in an epoch. Attention servers by rank, then FFN servers by rank; the receiver
/// is among them.
struct Topology {
  Epoch epoch = 0;
  std::vector<Peer> peers;
  PlacementSpec placement;
  friend bool operator==(const Topology&, const Topology&) = default;
};

struct Go {
  Epoch epoch = 0;
  friend bool operator==(const Go&, const Go&) = default;
};

struct Stop {
  Epoch next_epoch = 0;
  std::string reason;  ///< who was lost, for the server's log
  friend bool operator==(const Stop&, const Stop&) = default;
};

/// Final: the server must not connect again.
struct Refused {
  std::string reason;
  friend bool operator==(const Refused&, const Refused&) = default;
};

struct Shutdown {
  friend bool operator==(const Shutdown&, const Shutdown&) = default;
};

using ServerMessage = std::variant<Registration, Ready, StopAck, LaneResult, Heartbeat, Failure>;
using CoordinatorMessage =
    std::variant<Refused, Topology, Go, AttentionStepPlan, FfnStepPlan, Stop, Shutdown>;

/// What `fastfd status` shows.
struct MemberStatus {
  Role role = Role::kAttention;
  ServerRank rank = 0;
  std::uint64_t incarnation = 0;
  std::uint32_t pid = 0;
  std::string data_plane_address;
  std::string state;  ///< "missing", "registered", "connecting", "ready", "serving", "stopping"
};

struct ClusterStatus {
  Epoch epoch = 0;
  bool ready = false;
  bool draining = false;
  std::string detail;
  std::vector<MemberStatus> members;
};

}  // namespace fastfd::control_plane
