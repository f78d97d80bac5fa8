#pragma once

/// `nccl`: servers with a GPU each, on any hosts. The kernels are those of every GPU transport;
/// they store into windows of their own GPU, and NCCL carries each message over.
///
///   attention server                              FFN server
///     dispatch kernels -> staging windows           receive into its windows
///     send, one group to all FFN servers   ====>    wait (finds the flags raised), index, experts
///     receive into its windows             <====    combine kernel -> staging windows, send
///     wait, sum
///
/// Each (lane, direction) has a communicator of its own, so lanes don't wait for each other. In it
/// the attention servers of the epoch have the ranks 0 .. M - 1 and its FFN servers M .. M + N - 1,
/// both ascending.
///
/// Length of a message: NCCL needs it at both ends before they meet, so it follows from the plan:
/// header, flag and AttentionLanePlan::row_bucket rows with their routes
/// (src/transport/slot_parts.h). FFN servers find the buckets of all participants in
/// FfnLanePlan::participant_buckets. The sum of them, which the plan names as well, would be as
/// correct, but each of M servers would send what all of them have, M times too much.
///
/// Graphs: none. A captured operation holds its communicator, which lives as long as the epoch;
/// Blueprint::uses_graphs() is false with this transport, so that plans ask both pools for eager
/// steps. What that costs is host time: two groups a layer.
///
/// Epochs: communicators are made when an epoch is connected and aborted when it ends. Before
/// ncclCommAbort, which lets receives end with half a message, the port sets the server's
/// layout::AbortState on the device: no kernel takes what came for a message after that.
///
/// NCCL's kernels wait as the wait kernel does: at most kNcclCtas CTAs a lane (PROTOCOL 5). They
/// have no bound of their own; the coordinator finds who stands still, and abort() ends them. The
/// library (libnccl.so.2, 2.19 or newer) is loaded at the first use; nothing links it. NCCL's own
/// variables (NCCL_SOCKET_IFNAME, NCCL_IB_HCA, NCCL_DEBUG, ...) apply. As it does not authenticate
/// peers, the network must be a trusted one.

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "fastfd/core/ids.h"
#include "fastfd/core/status.h"
#include "fastfd/device/cuda.h"
#include "fastfd/transport/device_port.h"
#include "fastfd/transport/endpoint.h"
#include "fastfd/transport/port.h"

namespace fastfd::transport {

/// CTAs of one communicator's kernels: as many channels to a peer. Enough for a 400 Gb/s adapter.
inline constexpr int kNcclCtas = 4;

/// OK if this build has the transport and the library can be loaded; else kUnavailable with cause
/// and remedy. The first call loads the library. Thread-safe.
Status nccl_availability();

/// Who a server is and what it agrees on with all others.
struct NcclEndpointOptions {
  Role role = Role::kAttention;  ///< kAttention or kFfn
  ServerRank rank = 0;
  std::uint64_t incarnation = 0;  ///< as registered with the coordinator
  WindowShape shape;
  /// Of the cluster, whether in the epoch or not.
  std::uint32_t num_attention_servers = 0;
  std::uint32_t num_ffn_servers = 0;
  std::uint32_t num_lanes = kMaxLanes;  ///< that plans may use, the same on all servers
  /// "tcp:HOST:PORT" to listen on, an address of this host that the other servers reach; port 0:
  /// any free one. Carries only the hand-out of NCCL's ids.
  std::string address;
};

/// A server that takes part in an epoch, as its topology names it.
struct NcclMember {
  Role role = Role::kAttention;
  ServerRank rank = 0;
  std::uint64_t incarnation = 0;
  std::string address;  ///< NcclEndpoint::address() of that server
};

/// A server's windows, and per epoch its communicators. The lowest attention server of an epoch
/// makes the ids of all communicators; the others fetch them at its address. One thread at a time
/// calls connect.
///
/// Errors of connect, each naming peers, addresses and remedy:
///   kInvalidArgument   shapes, lanes or versions differ, or the members make no sense
///   kUnavailable       NCCL failed, or a member is of another incarnation than the topology says
///   kDeadlineExceeded  members that did not come in time
///   kAborted           cancelled, or a member is at a later epoch already
class NcclEndpoint {
 public:
  /// Takes the memory of all windows: only while no kernel waits on this GPU. Throws
  /// std::invalid_argument for options that can't be, std::system_error if the address can't be
  /// bound, device::DeviceError if NCCL is not there or the GPU has no room.
  NcclEndpoint(const device::CudaDevice& device, const NcclEndpointOptions& options);
  ~NcclEndpoint();
  NcclEndpoint(const NcclEndpoint&) = delete;
  NcclEndpoint& operator=(const NcclEndpoint&) = delete;

  const std::string& address() const;

  /// Blocks until all communicators are made and every pair has exchanged a message, so that
  /// nothing is left to be set up under a waiting kernel. The port of the epoch before must be
  /// aborted: both use the same windows. `members` has this server among them.
  Result<std::shared_ptr<DevicePort>> connect(Epoch epoch, std::span<const NcclMember> members,
                                              const ConnectOptions& options = {});

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// "tcp:HOST:0" with the address of this host from which `host` is reached, for
/// NcclEndpointOptions::address. kUnavailable if there is no way to it. Looks the name up, sends
/// nothing.
Result<std::string> listen_address_towards(const std::string& host);

}  // namespace fastfd::transport
