#pragma once

/// The data plane: hidden states of one (step, layer, lane) from attention servers to FFN servers
/// (M2N dispatch) and weighted partial sums back (N2M combine), written straight into the
/// receiver's window. Two ends of one interface, one implementation a transport.
///
/// Buffer reuse is safe by the reply chain (PROTOCOL 3): a lane's dispatch s+1 leaves only after
/// combine s came from every FFN server, and buffers alternate by layer.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>

#include "fastfd/core/dtype.h"
#include "fastfd/core/ids.h"
#include "fastfd/core/status.h"

namespace fastfd::transport {

/// What both ends of every window must agree on; compared at the handshake.
struct WindowShape {
  std::uint32_t max_lane_rows = 0;  ///< rows of one attention server in one lane
  std::uint32_t hidden_dim = 0;
  std::uint32_t max_routes_per_row = 0;  ///< top_k
  std::uint32_t num_layers = 0;
  DType dispatch_dtype = DType::kBFloat16;
  DType combine_dtype = DType::kFloat32;
  friend bool operator==(const WindowShape&, const WindowShape&) = default;
};

/// One hop of one lane. The flag value is made from epoch and step * num_layers + layer + 1.
struct HopId {
  Epoch epoch = 0;
  StepId step = 0;
  std::uint32_t layer = 0;
  LaneId lane = 0;
};

/// Dispatch buffer to fill. Row i holds one token; its routes are
/// route_offsets[i] .. route_offsets[i + 1] - 1.
struct DispatchWriter {
  std::byte* rows = nullptr;               ///< [max_lane_rows, hidden_dim] of dispatch_dtype
  std::uint32_t* route_offsets = nullptr;  ///< [max_lane_rows + 1], [0] must be 0
  std::uint32_t* route_experts = nullptr;  ///< [max_lane_rows * max_routes_per_row], local ids
  float* route_weights = nullptr;          ///< same
};

/// What one attention server sent. Valid until that server has been answered.
struct DispatchReader {
  std::uint32_t num_rows = 0;
  std::uint32_t num_routes = 0;
  const std::byte* rows = nullptr;
  const std::uint32_t* route_offsets = nullptr;
  const std::uint32_t* route_experts = nullptr;
  const float* route_weights = nullptr;
  /// False: a peer with a bug sent counts or route offsets that don't fit the window, and nothing
  /// else here may be used but to report it. True: rows and offsets can be walked safely (expert
  /// ids and values remain the reader's to check).
  bool valid = true;
  const char* problem = "";  ///< what is not valid: "more rows than max_lane_rows"
};

/// How a bounded wait ended.
enum class WaitOutcome : std::uint8_t {
  kReady,
  kWoken,  ///< nothing ready, but somebody rang (a plan arrived): look again
  kTimedOut,
  kAborted,  ///< the epoch is being abandoned
};

/// Bounded spinning before a futex sleep, in microseconds; 0 sleeps at once.
struct WaitPolicy {
  std::uint32_t spin_us = 50;
};

/// An attention server's end. One thread uses it; abort() and ring() are for any thread.
///
/// Peers are addressed by rank. Sends have no effect after abort() and for a hop of another epoch
/// than the port's, so a late sender can neither move a flag back nor raise one at a live peer.
/// A rank that is not connected, or a hop outside the window's shape, is a broken invariant
/// (InternalError). Nothing here allocates but missing_peers().
class AttentionPort {
 public:
  virtual ~AttentionPort() = default;

  /// Highest connected rank + 1.
  virtual std::uint32_t num_ffn_servers() const = 0;

  /// Send half of dispatch: the peer's buffer for this hop. Write rows and routes into it, then
  /// send. Never blocks.
  virtual DispatchWriter dispatch_buffer(ServerRank ffn_rank, const HopId& hop) = 0;
  virtual void send_dispatch(ServerRank ffn_rank, const HopId& hop, std::uint32_t num_rows,
                             std::uint32_t num_routes) = 0;

  /// Receive half of combine: blocks until every FFN server has answered this hop with as many rows
  /// as it was sent, the timeout ran out, or abort(). Never returns kWoken. A hop of another epoch
  /// than the port's is kAborted at once.
  virtual WaitOutcome wait_combine(const HopId& hop, std::chrono::microseconds timeout) = 0;
  /// True if every FFN server has answered. Never blocks.
  virtual bool combine_ready(const HopId& hop) = 0;
  /// [rows, hidden_dim] of combine_dtype, row i for row i of the dispatch. Valid until the lane's
  /// next dispatch of a layer of the same parity (with an odd number of layers that is the very
  /// next one, where a step ends).
  virtual const std::byte* combine_rows(ServerRank ffn_rank, const HopId& hop) const = 0;
  /// FFN servers that have not answered the hop, for error messages: "FFN server 1", or
  /// "FFN servers 0, 2 (answered 3 rows where 5 were sent)"; empty if none.
  virtual std::string missing_peers(const HopId& hop) const = 0;

  virtual void abort() = 0;  ///< makes waits return kAborted until begin_epoch
  virtual void ring() = 0;   ///< wakes the waiting thread
  /// Clears the abort word. Only while no peer can still write under an older epoch.
  virtual void begin_epoch(Epoch epoch) = 0;
};

/// An FFN server's end. Threads, late sends and broken invariants as for AttentionPort.
class FfnPort {
 public:
  virtual ~FfnPort() = default;

  /// Highest connected rank + 1.
  virtual std::uint32_t num_attention_servers() const = 0;

  /// True if every participant's dispatch of this hop has arrived. Never blocks. Never true for a
  /// hop of another epoch than the port's.
  virtual bool dispatch_ready(const HopId& hop, ServerMask participants) = 0;
  virtual DispatchReader dispatch(ServerRank attention_rank, const HopId& hop) const = 0;

  /// [max_lane_rows, hidden_dim] of combine_dtype in the attention server's window.
  virtual std::byte* combine_buffer(ServerRank attention_rank, const HopId& hop) = 0;
  /// Every participant is answered, also with zero rows.
  virtual void send_combine(ServerRank attention_rank, const HopId& hop,
                            std::uint32_t num_rows) = 0;

  /// Doorbell value to take before polling dispatch_ready and to give to wait(): a ring in
  /// between is not lost.
  virtual std::uint32_t doorbell() const = 0;
  /// Blocks until the doorbell differs from `seen`, the timeout ran out, or abort(). Returns
  /// kWoken, kTimedOut or kAborted.
  virtual WaitOutcome wait(std::uint32_t seen, std::chrono::microseconds timeout) = 0;
  /// Participants whose dispatch has not arrived: "attention servers 0, 2"; empty if none.
  virtual std::string missing_peers(const HopId& hop, ServerMask participants) const = 0;

  virtual void abort() = 0;
  virtual void ring() = 0;
  virtual void begin_epoch(Epoch epoch) = 0;
};

}  // namespace fastfd::transport
