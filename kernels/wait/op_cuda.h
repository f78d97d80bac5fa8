#pragma once

/// Waiting for peers' messages on the GPU: the only kernel of the data plane that spins. One CTA,
/// so that it can't fill the SMs that what it waits for needs (PROTOCOL 5).

#include <cstddef>
#include <cstdint>

#include "fastfd/core/status.h"
#include "fastfd/device/cuda_stream.h"
#include "kernels/layout/hop_times.h"
#include "kernels/layout/lane_control.h"
#include "kernels/layout/window.h"

namespace fastfd::kernels::cuda {

/// Ends when every awaited peer has raised the flag of (control->epoch, control->step, hop), or
/// when it gives up: at the device-clock bound, when the host raises the abort word, or when a
/// message has arrived whose header names another hop or another number of rows than expected. Then
/// it fills `abort` (peer: the lowest rank missing or at fault) and ends; it also ends when another
/// wait has given up. Kernels behind it in the stream see what the peers stored.
struct WaitParams {
  const layout::LaneControl* control = nullptr;  ///< device memory
  layout::LaneHop hop;
  const std::byte* const* windows = nullptr;  ///< [num_peers]; nullptr: not in this epoch
  std::uint32_t num_peers = 0;                ///< at most kMaxServers
  layout::SlotGrid grid;                      ///< of the windows
  /// FFN server: waits for control->participants. Attention server (false): for every window there
  /// is. A participant without a window never arrives.
  bool participants_only = true;
  const std::uint32_t* expected_rows = nullptr;  ///< [num_peers] or nullptr: any count
  /// Device memory, so that a retry can double it without a new capture.
  const std::uint64_t* timeout_ns = nullptr;
  const std::uint32_t* abort_word = nullptr;  ///< pinned host memory: not 0 ends the wait
  /// out [1]: 1 if every message is there, else 0. What the kernels behind go by where they must
  /// agree among each other: `abort` may be set by another lane at any moment.
  std::uint32_t* ready = nullptr;
  layout::AbortState* abort = nullptr;
  /// For the host, all optional: layout::HopProgress of the lane in pinned memory; in device memory
  /// when this wait began and ended [1], and the rows that all messages together bring [1].
  std::uint64_t* progress = nullptr;
  layout::HopTimes* times = nullptr;
  std::uint32_t* num_rows = nullptr;
};
Status launch_wait(const WaitParams& params, device::CudaStream stream);

/// Writes the GPU's clock, in nanoseconds, to `now_ns` in device memory: a step's begin and end.
Status launch_stamp(std::uint64_t* now_ns, device::CudaStream stream);

}  // namespace fastfd::kernels::cuda
