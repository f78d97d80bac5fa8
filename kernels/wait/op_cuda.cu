#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/signal.cuh"
#include "kernels/wait/op_cuda.h"

namespace fastfd::kernels::cuda {
namespace {

constexpr std::uint32_t kWaitThreads = kMaxServers;  // one a peer
constexpr std::uint32_t kPollsPerLook = 100;         // the host's word is across PCIe

enum class Verdict : std::uint8_t { kKeepWaiting, kHostAsked, kTimedOut, kOtherWaitGaveUp };

__device__ Verdict look_up(const WaitParams& params, std::uint64_t started_ns) {
  if (is_aborted(params.abort)) {
    return Verdict::kOtherWaitGaveUp;
  }
  if (load_relaxed_system(params.abort_word) != 0) {
    return Verdict::kHostAsked;
  }
  return device_clock_ns() - started_ns > *params.timeout_ns ? Verdict::kTimedOut
                                                             : Verdict::kKeepWaiting;
}

__device__ bool is_expected(const WaitParams& params, const layout::LaneControl& control,
                            std::uint32_t peer, const std::byte* slot) {
  const layout::SlotHeader header =
      *reinterpret_cast<const layout::SlotHeader*>(slot + layout::SlotGrid::header_offset());
  return header.epoch == control.epoch && header.step == control.step &&
         header.lane == params.hop.lane && header.layer == params.hop.layer &&
         (params.expected_rows == nullptr || header.num_rows == params.expected_rows[peer]);
}

static_assert(layout::SlotGrid::flag_offset() == 0);  // a slot's address is its flag's

/// The lowest peer for which `at_fault`, kMaxServers if there is none. All threads call it.
__device__ std::uint32_t lowest_peer(bool at_fault, std::uint32_t* shared_peer) {
  if (threadIdx.x == 0) {
    *shared_peer = kMaxServers;
  }
  __syncthreads();
  if (at_fault) {
    atomicMin(shared_peer, threadIdx.x);
  }
  __syncthreads();
  return *shared_peer;
}

/// Polls until all threads' flags are there or somebody says stop. Thread 0 looks up from time to
/// time; one vote a poll keeps the threads together.
__device__ Verdict poll_flags(const WaitParams& params, const std::uint64_t* flag,
                              std::uint64_t wanted, std::uint64_t started_ns, bool* arrived) {
  __shared__ Verdict verdict;
  for (std::uint32_t poll = 1;; ++poll) {
    if (!*arrived && flag != nullptr) {
      *arrived = load_acquire_system(flag) == wanted;
    }
    if (__syncthreads_and(static_cast<int>(*arrived)) != 0) {
      return Verdict::kKeepWaiting;
    }
    if (poll % kPollsPerLook == 0) {
      if (threadIdx.x == 0) {
        verdict = look_up(params, started_ns);
      }
      __syncthreads();
      if (verdict != Verdict::kKeepWaiting) {
        return verdict;
      }
    }
  }
}

/// All threads call it; `slot` is what the thread's peer sent, or nullptr.
__device__ void count_rows(const WaitParams& params, const std::byte* slot) {
  __shared__ std::uint32_t num_rows;
  if (threadIdx.x == 0) {
    num_rows = 0;
  }
  __syncthreads();
  if (slot != nullptr) {
    atomicAdd(&num_rows,
              reinterpret_cast<const layout::SlotHeader*>(slot + layout::SlotGrid::header_offset())
                  ->num_rows);
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    *params.num_rows = num_rows;
  }
}

/// The host reads this word whenever it likes: one plain store to its memory, which nobody awaits.
__device__ void report(const WaitParams& params, std::uint64_t step, bool waiting) {
  if (params.progress != nullptr) {
    *static_cast<volatile std::uint64_t*>(params.progress) =
        layout::HopProgress{step, params.hop.layer, waiting}.pack();
  }
}

__global__ void __launch_bounds__(kWaitThreads) wait_kernel(const WaitParams params) {
  __shared__ std::uint32_t shared_peer;
  cudaGridDependencySynchronize();
  const std::uint32_t peer = threadIdx.x;
  const bool aborted = is_aborted(params.abort);
  const std::byte* window = peer < params.num_peers ? params.windows[peer] : nullptr;
  const layout::LaneControl control = *params.control;
  if (__syncthreads_or(static_cast<int>(aborted)) != 0) {  // the same for all threads
    if (peer == 0) {
      *params.ready = 0;
    }
    return;
  }
  const std::uint64_t started_ns = device_clock_ns();
  if (peer == 0) {
    report(params, control.step, /*waiting=*/true);
  }
  const bool awaited =
      params.participants_only ? ((control.participants >> peer) & 1U) != 0 : window != nullptr;
  const std::byte* slot = nullptr;
  if (awaited && window != nullptr) {
    slot = window + params.grid.slot_offset(params.hop.lane, params.hop.buffer());
  }
  bool arrived = !awaited;
  const Verdict verdict = poll_flags(params, reinterpret_cast<const std::uint64_t*>(slot),
                                     params.hop.flag(control), started_ns, &arrived);

  layout::AbortReason reason = layout::AbortReason::kBadMessage;
  bool at_fault = !arrived;
  if (verdict == Verdict::kKeepWaiting && params.num_rows != nullptr) {
    count_rows(params, awaited ? slot : nullptr);
  }
  if (verdict == Verdict::kKeepWaiting) {
    cudaTriggerProgrammaticLaunchCompletion();  // not earlier: what follows must not fill the SMs
    at_fault = awaited && !is_expected(params, control, peer, slot);
  } else {
    reason = verdict == Verdict::kTimedOut ? layout::AbortReason::kTimedOut
                                           : layout::AbortReason::kHostAsked;
  }
  const std::uint32_t culprit = lowest_peer(at_fault, &shared_peer);
  if (peer != 0) {
    return;
  }
  *params.ready = culprit == kMaxServers ? 1 : 0;
  const std::uint64_t ended_ns = device_clock_ns();
  if (params.times != nullptr) {
    *params.times = {started_ns, ended_ns};
  }
  report(params, control.step, /*waiting=*/culprit != kMaxServers);
  if (culprit != kMaxServers) {
    give_up(params.abort, reason, culprit, params.hop, control.step, ended_ns - started_ns);
  }
}

__global__ void stamp_kernel(std::uint64_t* now_ns) { *now_ns = device_clock_ns(); }

}  // namespace

Status launch_wait(const WaitParams& params, device::CudaStream stream) {
  if (params.num_peers > kMaxServers || params.hop.lane >= kMaxLanes) {
    return {StatusCode::kInvalidArgument, "wait: " + std::to_string(params.num_peers) +
                                              " peers on lane " + std::to_string(params.hop.lane)};
  }
  return launch(wait_kernel,
                {.grid = 1, .block = kWaitThreads, .overlaps_predecessor = true, .waits = true},
                stream, "wait", params);
}

Status launch_stamp(std::uint64_t* now_ns, device::CudaStream stream) {
  return launch(stamp_kernel, {.grid = 1, .block = 1}, stream, "stamp", now_ns);
}

}  // namespace fastfd::kernels::cuda
