#pragma once

/// What kernels of the data plane do to flags, headers and the abort state.

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/layout/lane_control.h"
#include "kernels/layout/window.h"

namespace fastfd::kernels::cuda {

/// Everything the flag's writer stored before it is visible to this thread afterwards, also if the
/// writer is another GPU.
__device__ inline std::uint64_t load_acquire_system(const std::uint64_t* flag) {
  std::uint64_t value;
  asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(flag) : "memory");
  return value;
}

__device__ inline void store_release_system(std::uint64_t* flag, std::uint64_t value) {
  asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(flag), "l"(value) : "memory");
}

/// Of memory that another kernel or the host may write meanwhile.
__device__ inline std::uint32_t load_relaxed_system(const std::uint32_t* word) {
  std::uint32_t value;
  asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(word) : "memory");
  return value;
}

__device__ inline std::uint64_t device_clock_ns() {
  std::uint64_t now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  return now;
}

__device__ inline bool is_aborted(const layout::AbortState* abort) {
  return load_relaxed_system(&abort->aborted) != 0;
}

/// Sets the sticky word; the first caller also says why.
__device__ inline void give_up(layout::AbortState* abort, layout::AbortReason reason,
                               std::uint32_t peer, const layout::LaneHop& hop, std::uint64_t step,
                               std::uint64_t waited_ns) {
  if (atomicCAS_system(&abort->aborted, 0U, 1U) != 0) {
    return;
  }
  abort->reason = reason;
  abort->peer = peer;
  abort->lane = hop.lane;
  abort->layer = hop.layer;
  abort->step = step;
  abort->waited_ns = waited_ns;
}

/// Called by one thread that has everything the message consists of behind it (stored by itself, or
/// by others before a barrier or an acquired counter).
__device__ inline void raise_flag(std::byte* slot, const layout::LaneHop& hop,
                                  const layout::LaneControl& control, std::uint32_t num_rows,
                                  std::uint32_t num_routes) {
  auto* header = reinterpret_cast<layout::SlotHeader*>(slot + layout::SlotGrid::header_offset());
  header->num_rows = num_rows;
  header->num_routes = num_routes;
  header->epoch = control.epoch;
  header->lane = hop.lane;
  header->step = control.step;
  header->layer = hop.layer;
  auto* flag = reinterpret_cast<std::uint64_t*>(slot + layout::SlotGrid::flag_offset());
  store_release_system(flag, hop.flag(control));
}

/// True for exactly one CTA of a grid: the one that comes here last, after which everything the
/// others stored before may be read and published. Called once by all threads of every CTA. The
/// counter must be 0 before the grid starts and is 0 again afterwards.
__device__ inline bool is_last_cta(std::uint32_t* ctas_done, std::uint32_t num_ctas) {
  __shared__ bool is_last;
  __syncthreads();
  if (threadIdx.x == 0) {
    // With the barrier: all stores of this CTA come before its count. A GPU's scope is enough, also
    // for stores to peers: the last CTA passes on what it has seen when it releases its flags.
    __threadfence();
    is_last = atomicAdd(ctas_done, 1U) == num_ctas - 1;
    if (is_last) {
      __threadfence();
      *ctas_done = 0;  // behind the fence, which would wait for it
    }
  }
  __syncthreads();
  return is_last;
}

}  // namespace fastfd::kernels::cuda
