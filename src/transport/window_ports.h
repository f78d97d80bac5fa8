#pragma once

/// Both ports over mapped windows. They know nothing of how the memory came to be mapped: `inproc`
/// and `shm` share this code, flags and doorbells included.

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "fastfd/transport/port.h"
#include "kernels/layout/window.h"
#include "transport/doorbell.h"

namespace fastfd::transport {

/// One (attention server, FFN server) pair as one of the two sees it. A rank that is not in the
/// epoch has null windows.
struct PairWindows {
  std::byte* dispatch = nullptr;
  std::byte* combine = nullptr;
  Doorbell peer_doorbell;
  bool is_connected() const { return dispatch != nullptr; }
};

/// What a port is made of.
struct PortParts {
  WindowShape shape;
  WaitPolicy wait_policy;
  Epoch epoch = 0;
  Doorbell own_doorbell;
  std::vector<PairWindows> pairs;      ///< indexed by the peer's rank
  std::shared_ptr<const void> memory;  ///< keeps every mapping named above alive
};

/// What both ends have in common: the epoch, the abort word, the doorbell, and the rule for raising
/// flags.
class WindowPort {
 public:
  explicit WindowPort(PortParts parts);

 protected:
  /// Per slot of one peer.
  template <typename T>
  using PerSlot = std::array<std::array<T, layout::kBuffersPerLane>, kMaxLanes>;

  void abort_waits();
  void enter_epoch(Epoch epoch);

  /// Flag value of a hop.
  std::uint64_t flag_of(const HopId& hop) const {
    return layout::pack_flag(hop.epoch,
                             layout::hop_sequence(hop.step, parts_.shape.num_layers, hop.layer));
  }
  static bool has_arrived(std::uint64_t* flag, std::uint64_t wanted) {
    return std::atomic_ref(*flag).load(std::memory_order_acquire) == wanted;
  }
  /// True if the hop is of the port's epoch. Throws InternalError if it is out of range.
  bool is_current(const HopId& hop) const;
  /// Throws InternalError if no such peer is connected or the hop is out of range.
  const PairWindows& pair(ServerRank peer, const HopId& hop) const;

  /// Publishes what was written to the slot of `hop`: header, flag, ring. Does nothing and returns
  /// false when the epoch is being abandoned, and when the flag would not grow: then the hop
  /// belongs to an epoch that is over and the slot may be in use again.
  bool publish(ServerRank peer, const HopId& hop, std::uint32_t num_rows, std::uint32_t num_routes,
               std::uint64_t* flag, layout::SlotHeader* header);

  PortParts parts_;
  layout::DispatchLayout dispatch_layout_;
  layout::CombineLayout combine_layout_;
  std::atomic<Epoch> epoch_;
  std::atomic<bool> aborted_{false};
  std::vector<PerSlot<std::uint64_t>> last_raised_;  ///< [peer rank]: flags this side wrote
};

class WindowAttentionPort final : public AttentionPort, private WindowPort {
 public:
  explicit WindowAttentionPort(PortParts parts);

  std::uint32_t num_ffn_servers() const override;
  DispatchWriter dispatch_buffer(ServerRank ffn_rank, const HopId& hop) override;
  void send_dispatch(ServerRank ffn_rank, const HopId& hop, std::uint32_t num_rows,
                     std::uint32_t num_routes) override;
  WaitOutcome wait_combine(const HopId& hop, std::chrono::microseconds timeout) override;
  bool combine_ready(const HopId& hop) override;
  const std::byte* combine_rows(ServerRank ffn_rank, const HopId& hop) const override;
  std::string missing_peers(const HopId& hop) const override;
  void abort() override { abort_waits(); }
  void ring() override { parts_.own_doorbell.ring(); }
  void begin_epoch(Epoch epoch) override { enter_epoch(epoch); }

 private:
  layout::CombineSlot combine_slot(ServerRank ffn_rank, const HopId& hop) const;
  bool has_answered(ServerRank ffn_rank, const HopId& hop, std::uint64_t wanted) const;

  std::vector<PerSlot<std::uint32_t>> rows_sent_;  ///< [FFN rank]: what a combine must answer
};

class WindowFfnPort final : public FfnPort, private WindowPort {
 public:
  explicit WindowFfnPort(PortParts parts);

  std::uint32_t num_attention_servers() const override;
  bool dispatch_ready(const HopId& hop, ServerMask participants) override;
  DispatchReader dispatch(ServerRank attention_rank, const HopId& hop) const override;
  std::byte* combine_buffer(ServerRank attention_rank, const HopId& hop) override;
  void send_combine(ServerRank attention_rank, const HopId& hop, std::uint32_t num_rows) override;
  std::uint32_t doorbell() const override { return parts_.own_doorbell.value(); }
  WaitOutcome wait(std::uint32_t seen, std::chrono::microseconds timeout) override;
  std::string missing_peers(const HopId& hop, ServerMask participants) const override;
  void abort() override { abort_waits(); }
  void ring() override { parts_.own_doorbell.ring(); }
  void begin_epoch(Epoch epoch) override { enter_epoch(epoch); }

 private:
  layout::DispatchSlot dispatch_slot(ServerRank attention_rank, const HopId& hop) const;
};

}  // namespace fastfd::transport
