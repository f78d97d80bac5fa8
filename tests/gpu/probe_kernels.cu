#include "kernels/cuda/launch.cuh"
#include "tests/gpu/probe_kernels.h"

namespace fastfd::testing {
namespace {

using kernels::cuda::launch;
using layout::AbortReason;
using layout::AbortState;

constexpr std::uint32_t kThreads = 128;
constexpr std::uint32_t kOccupyThreads = 128;
constexpr std::size_t kOccupyShared = 200 * 1024;  // more than half an SM's
constexpr std::uint32_t kPollsBetweenLooks = 100;

__device__ std::uint64_t load_acquire(const std::uint64_t* word) {
  std::uint64_t value;
  asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(word) : "memory");
  return value;
}

__device__ std::uint32_t load_acquire(const std::uint32_t* word) {
  std::uint32_t value;
  asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(word) : "memory");
  return value;
}

__device__ void store_release(std::uint64_t* word, std::uint64_t value) {
  asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(word), "l"(value) : "memory");
}

__device__ void store_release(std::uint32_t* word, std::uint32_t value) {
  asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(word), "r"(value) : "memory");
}

__device__ std::uint64_t clock_ns() {
  std::uint64_t value;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(value));
  return value;
}

__device__ std::uint32_t sm_id() {
  std::uint32_t value;
  asm volatile("mov.u32 %0, %%smid;" : "=r"(value));
  return value;
}

__device__ std::uint32_t probe_word(std::uint32_t seed, std::uint32_t i) {
  return (i + 1) * 2654435761U ^ seed;
}

/// One thread's wait. False if it gave up, or if another wait had given up before.
__device__ bool wait_for(const std::uint64_t* flag, std::uint64_t value, const WaitLimits& limits) {
  const std::uint64_t start = clock_ns();
  for (std::uint32_t polls = 1;; ++polls) {
    if (load_acquire(flag) >= value) {
      return true;
    }
    if (polls % kPollsBetweenLooks != 0) {
      continue;
    }
    const std::uint64_t waited = clock_ns() - start;
    const bool is_asked = load_acquire(limits.host_abort) != 0;
    if (is_asked || waited > limits.timeout_ns || load_acquire(&limits.state->aborted) != 0) {
      if (atomicCAS(&limits.state->aborted, 0U, 1U) == 0) {
        limits.state->waited_ns = waited;
        limits.state->reason = is_asked ? AbortReason::kHostAsked : AbortReason::kTimedOut;
      }
      return false;
    }
  }
}

__global__ void post_kernel(PostParams params) {
  for (std::uint32_t i = threadIdx.x; i < params.num_words; i += blockDim.x) {
    params.payload[i] = probe_word(params.seed, i);
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    store_release(params.flag, params.value);
  }
}

__global__ void receive_kernel(ReceiveParams params) {
  __shared__ bool has_come;
  if (threadIdx.x == 0) {
    has_come = wait_for(params.flag, params.value, params.limits);
    *params.num_wrong = has_come ? 0 : params.num_words + 1;
    __threadfence_system();
  }
  __syncthreads();
  if (!has_come) {
    return;
  }
  std::uint32_t num_wrong = 0;
  for (std::uint32_t i = threadIdx.x; i < params.num_words; i += blockDim.x) {
    num_wrong += params.payload[i] != probe_word(params.seed, i) ? 1 : 0;
  }
  if (num_wrong != 0) {
    atomicAdd_system(params.num_wrong, num_wrong);
  }
}

__global__ void wait_kernel(WaitParams params) {
  store_release(params.started, 1U);
  wait_for(params.flag, params.value, params.limits);
}

__global__ void count_kernel(CountParams params) {
  if (load_acquire(&params.state->aborted) == 0) {
    *params.counter += 1;
  }
}

__global__ void ping_pong_kernel(PingPongParams params) {
  const std::uint64_t start = clock_ns();
  for (std::uint32_t round = 0; round < params.num_rounds; ++round) {
    const std::uint64_t value = params.first_value + round;
    if (!params.serves) {
      store_release(params.to_peer, value);
    }
    if (!wait_for(params.from_peer, value, params.limits)) {
      store_release(params.elapsed_ns, std::uint64_t{0});
      return;
    }
    if (params.serves) {
      store_release(params.to_peer, value);
    }
  }
  store_release(params.elapsed_ns, clock_ns() - start);
}

__global__ void occupy_kernel(OccupyParams params) {
  if (threadIdx.x != 0) {
    return;
  }
  params.sm_ids[blockIdx.x] = sm_id();
  atomicAdd(params.arrived, 1U);
  const std::uint64_t start = clock_ns();
  while (load_acquire(params.other) < params.num_others) {
    if (clock_ns() - start > params.timeout_ns) {
      atomicAdd(params.num_lonely, 1U);
      return;
    }
  }
}

}  // namespace

Status launch_post(const PostParams& params, device::CudaStream stream) {
  return launch(post_kernel, {1, kThreads}, stream, "post", params);
}

Status launch_receive(const ReceiveParams& params, device::CudaStream stream) {
  return launch(receive_kernel, {1, kThreads}, stream, "receive", params);
}

Status launch_wait(const WaitParams& params, device::CudaStream stream) {
  return launch(wait_kernel, {1, 1}, stream, "wait", params);
}

Status launch_count(const CountParams& params, device::CudaStream stream) {
  return launch(count_kernel, {1, 1}, stream, "count", params);
}

Status launch_ping_pong(const PingPongParams& params, device::CudaStream stream) {
  return launch(ping_pong_kernel, {1, 1}, stream, "ping pong", params);
}

Status launch_occupy(const OccupyParams& params, device::CudaStream stream) {
  if (Status status = kernels::cuda::allow_shared_bytes(occupy_kernel, kOccupyShared, "occupy");
      !status) {
    return status;
  }
  return launch(occupy_kernel, {params.num_ctas, kOccupyThreads, kOccupyShared}, stream, "occupy",
                params);
}

const void* occupy_kernel_address() { return reinterpret_cast<const void*>(occupy_kernel); }
std::uint32_t occupy_block_threads() { return kOccupyThreads; }
std::size_t occupy_shared_bytes() { return kOccupyShared; }

int occupy_max_ctas_per_sm() {
  int num_ctas = 0;
  cudaFuncSetAttribute(occupy_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kOccupyShared);
  cudaOccupancyMaxActiveBlocksPerMultiprocessor(&num_ctas, occupy_kernel, kOccupyThreads,
                                                kOccupyShared);
  return num_ctas;
}

}  // namespace fastfd::testing
