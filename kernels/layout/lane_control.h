#pragma once

/// What the kernels of one lane read from device memory instead of from their arguments, so that a
/// captured graph serves every step, epoch and membership (PROTOCOL 3 and 5).

#include <cstdint>

#include "fastfd/core/ids.h"
#include "kernels/layout/flag.h"
#include "kernels/layout/host_device.h"
#include "kernels/layout/window.h"

namespace fastfd::layout {

/// Written by the plan upload of a (step, lane), on the lane's stream and in front of its kernels.
/// A server has one per lane.
struct alignas(128) LaneControl {
  std::uint64_t step = 0;
  std::uint32_t epoch = 0;
  std::uint32_t num_rows =
      0;  ///< attention server: its own rows; a kernel's grid covers the bucket
  std::uint32_t num_spans = 0;    ///< attention server: sequences with rows
  std::uint32_t num_samples = 0;  ///< attention server: rows that sample a token
  ServerMask participants = 0;    ///< attention servers that dispatch in this (step, lane)
};

/// What a captured kernel knows of its hop; step and epoch come from LaneControl.
struct LaneHop {
  std::uint32_t lane = 0;
  std::uint32_t layer = 0;
  std::uint32_t num_layers = 0;

  FASTFD_HOST_DEVICE constexpr std::uint64_t flag(const LaneControl& control) const {
    return pack_flag(control.epoch, hop_sequence(control.step, num_layers, layer));
  }
  FASTFD_HOST_DEVICE constexpr std::uint32_t buffer() const { return buffer_of_layer(layer); }
};

/// Why an AbortState was set.
enum class AbortReason : std::uint32_t {
  kHostAsked,     ///< the host raised its abort word
  kTimedOut,      ///< the device-clock bound ran out
  kBadMessage,    ///< the peer's header, counts or routes don't fit the hop or the window
  kBadPlacement,  ///< an expert is placed on a server without a window
  kBadPlan,       ///< more rows than the launch's bucket: another graph should have been replayed
};

/// One per server. Kernels that store to a peer, raise a flag, write KV or sample test `aborted`
/// first and do nothing if it is set.
struct alignas(128) AbortState {
  std::uint32_t aborted = 0;  ///< sticky, in device memory: set by the first wait that gave up
  // Who gave up on what, for the error message; written once, by whoever sets `aborted`.
  std::uint32_t peer = 0;
  std::uint32_t lane = 0;
  std::uint32_t layer = 0;
  std::uint64_t step = 0;
  std::uint64_t waited_ns = 0;
  AbortReason reason = AbortReason::kHostAsked;
};

}  // namespace fastfd::layout
