#pragma once

/// The instructions of sm_90a that CUDA C++ has no functions for: mbarriers, the bulk tensor copy
/// engine (TMA), asynchronous copies. As PTX ISA 9.0 describes them.

#include <cstdint>

namespace fastfd::kernels::cuda {

__device__ inline std::uint32_t shared_address(const void* pointer) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(pointer));
}

// --- mbarriers: a phase completes when `arrivals` have arrived and the expected bytes have landed.

__device__ inline void barrier_init(std::uint64_t* barrier, std::uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)),
               "r"(arrivals)
               : "memory");
}

/// Makes initialised barriers visible to the copy engine; the block synchronises afterwards.
__device__ inline void barrier_init_fence() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

__device__ inline void barrier_arrive(std::uint64_t* barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier))
               : "memory");
}

/// Arrives, and lets the phase wait for `num_bytes` more of bulk copies.
__device__ inline void barrier_arrive_expecting(std::uint64_t* barrier, std::uint32_t num_bytes) {
  asm volatile(
      "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)),
      "r"(num_bytes)
      : "memory");
}

/// Waits for the phase of this parity to complete. Only for barriers of the own block, whose other
/// side never waits for another kernel.
__device__ inline void barrier_wait(std::uint64_t* barrier, std::uint32_t parity) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra again;\n"
      "}\n" ::"r"(shared_address(barrier)),
      "r"(parity)
      : "memory");
}

/// A barrier of `num_threads` threads of the block, other than number 0 (__syncthreads).
__device__ inline void sync_threads(int barrier_number, int num_threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(barrier_number), "r"(num_threads) : "memory");
}

// --- copies into shared memory

/// `map` is a __grid_constant__ parameter. Elements outside the tensor arrive as zeros and count.
__device__ inline void copy_tile(void* to, const void* map, std::uint64_t* barrier, int c0,
                                 int c1) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%3, %4}], [%2];" ::"r"(shared_address(to)),
      "l"(map), "r"(shared_address(barrier)), "r"(c0), "r"(c1)
      : "memory");
}

__device__ inline void copy_tile(void* to, const void* map, std::uint64_t* barrier, int c0, int c1,
                                 int c2) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%3, %4, %5}], [%2];" ::"r"(shared_address(to)),
      "l"(map), "r"(shared_address(barrier)), "r"(c0), "r"(c1), "r"(c2)
      : "memory");
}

__device__ inline void copy_tile(void* to, const void* map, std::uint64_t* barrier, int c0, int c1,
                                 int c2, int c3, int c4) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%3, %4, %5, %6, %7}], [%2];" ::"r"(shared_address(to)),
      "l"(map), "r"(shared_address(barrier)), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "r"(c4)
      : "memory");
}

__device__ inline void prefetch_map(const void* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

/// 16 bytes past L1; zeros instead if not `valid` (`from` is then not read, but must be a global
/// address).
__device__ inline void copy_16_bytes(std::uint32_t to, const void* from, bool valid) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
               "r"(valid ? 16 : 0)
               : "memory");
}

__device__ inline void copy_4_bytes(std::uint32_t to, const void* from, bool valid) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(from),
               "r"(valid ? 4 : 0)
               : "memory");
}

/// Arrives once when all copies that this thread has issued have landed; the barrier's count
/// includes it.
__device__ inline void barrier_arrive_after_copies(std::uint64_t* barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(shared_address(barrier))
               : "memory");
}

/// Orders earlier accesses to shared memory by ordinary instructions, this thread's or seen by it
/// through a barrier, before later ones by the tensor cores and the copy engine.
__device__ inline void async_proxy_fence() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/// Place in a ring of shared-memory stages, and the parity of its barriers' current phase.
template <int kStages>
struct RingPosition {
  int stage = 0;
  std::uint32_t parity = 0;

  __device__ void advance() {
    if (++stage == kStages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

}  // namespace fastfd::kernels::cuda
