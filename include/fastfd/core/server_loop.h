#pragma once

#include <array>
#include <cstdint>

#include "fastfd/core/ids.h"

namespace fastfd {

/// Where a server's loop stands, for heartbeats: hung is who does not move while inputs are there.
struct LaneProgress {
  StepId step = 0;
  std::uint32_t layer = 0;
  bool waiting = false;  ///< for a peer, at this (step, layer)
};
using ServerProgress = std::array<LaneProgress, kMaxLanes>;

/// A server's compute loop as the control plane drives it, whatever its role. Functions may be
/// called from any thread; the loop itself is a thread of the server's own.
class ServerLoop {
 public:
  virtual ~ServerLoop() = default;

  /// Raises the abort word and blocks until the loop has left the epoch and can write to no window
  /// any more. Published plans are dropped. Idempotent.
  virtual void stop_epoch() = 0;

  virtual ServerProgress progress() const = 0;
};

}  // namespace fastfd
