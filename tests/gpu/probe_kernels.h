#pragma once

/// The smallest kernels that show what the device layer promises: payload and flag through a
/// window, a bounded wait with an abort word, kernels that do nothing after it, blocks that say
/// where they ran. Not for compute.

#include <cstdint>

#include "fastfd/core/status.h"
#include "fastfd/device/cuda_stream.h"
#include "kernels/layout/lane_control.h"

namespace fastfd::testing {

/// How a wait ends when its flag doesn't come.
struct WaitLimits {
  const std::uint32_t* host_abort = nullptr;  ///< [1] pinned; not 0: give up
  layout::AbortState* state = nullptr;        ///< [1] device memory
  std::uint64_t timeout_ns = 0;               ///< of the device's clock
};

/// Stores probe_word(seed, i) for every i, then raises the flag with release.
struct PostParams {
  std::uint32_t* payload = nullptr;  ///< [num_words], in a window
  std::uint32_t num_words = 0;
  std::uint32_t seed = 0;
  std::uint64_t* flag = nullptr;  ///< [1]
  std::uint64_t value = 0;
};
Status launch_post(const PostParams& params, device::CudaStream stream);

/// Waits until the flag has reached `value`, then counts the words that are not probe_word's.
struct ReceiveParams {
  const std::uint32_t* payload = nullptr;  ///< [num_words]
  std::uint32_t num_words = 0;
  std::uint32_t seed = 0;
  const std::uint64_t* flag = nullptr;  ///< [1]
  std::uint64_t value = 0;
  WaitLimits limits;
  std::uint32_t* num_wrong = nullptr;  ///< [1] pinned; num_words + 1 after a wait that gave up
};
Status launch_receive(const ReceiveParams& params, device::CudaStream stream);

/// Waits as above and does nothing else; says first that it runs.
struct WaitParams {
  std::uint32_t* started = nullptr;     ///< [1] pinned
  const std::uint64_t* flag = nullptr;  ///< [1]
  std::uint64_t value = 0;
  WaitLimits limits;
};
Status launch_wait(const WaitParams& params, device::CudaStream stream);

/// Adds one unless `state` says aborted: a kernel later in a graph.
struct CountParams {
  const layout::AbortState* state = nullptr;  ///< [1]
  std::uint32_t* counter = nullptr;           ///< [1]
};
Status launch_count(const CountParams& params, device::CudaStream stream);

/// One thread that raises `to_peer` and waits for `from_peer`, `num_rounds` times; who serves waits
/// first. Flags start at `first_value` - 1 or less.
struct PingPongParams {
  std::uint64_t* to_peer = nullptr;          ///< [1]
  const std::uint64_t* from_peer = nullptr;  ///< [1]
  std::uint64_t first_value = 1;
  std::uint32_t num_rounds = 0;
  bool serves = false;
  WaitLimits limits;
  std::uint64_t* elapsed_ns = nullptr;  ///< [1] pinned; 0 if it gave up
};
Status launch_ping_pong(const PingPongParams& params, device::CudaStream stream);

/// Blocks that fill an SM each, say which, and wait until `other` has as many as expected.
struct OccupyParams {
  std::uint32_t num_ctas = 0;
  std::uint32_t* sm_ids = nullptr;   ///< [num_ctas]
  std::uint32_t* arrived = nullptr;  ///< [1] blocks of this launch that run
  std::uint32_t* other = nullptr;    ///< [1] blocks of the other launch that run
  std::uint32_t num_others = 0;      ///< to wait for
  std::uint64_t timeout_ns = 0;
  std::uint32_t* num_lonely = nullptr;  ///< [1] blocks whose wait ran out
};
Status launch_occupy(const OccupyParams& params, device::CudaStream stream);
/// Address and block of the kernel above, for cta_footprint.
const void* occupy_kernel_address();
std::uint32_t occupy_block_threads();
std::size_t occupy_shared_bytes();
/// What the occupancy API says about it.
int occupy_max_ctas_per_sm();

}  // namespace fastfd::testing
