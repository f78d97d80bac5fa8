#include <algorithm>
#include <array>

#include "kernels/attention/split_worker.cuh"
#include "kernels/attention/tile_worker.cuh"
#include "kernels/cuda/launch.cuh"

namespace fastfd::kernels::cuda {
namespace {

constexpr int kMergeWarps = 4;

/// The attention of one layer. A persistent grid takes work from the lists of the step's schedule:
/// first whole blocks take tiles of queries, then every warp by itself takes splits. All of it is
/// taken when it can begin: a block that gets onto the GPU last, because a waiting kernel sits
/// where it belongs, must not hold any. Registers leave room for such a kernel beside a block.
template <typename Kv, int kHeadDim>
__global__ void __maxnreg__((AttentionShape<Kv, kHeadDim>::kMaxRegisters))
    attention_kernel(const __grid_constant__ AttentionArguments args) {
  extern __shared__ __align__(128) std::byte shared[];
  __shared__ std::uint32_t taken;
  cudaTriggerProgrammaticLaunchCompletion();  // the merge may get ready
  if (__syncthreads_or(static_cast<int>(args.abort->aborted)) != 0) {
    return;
  }
  AttentionCounters& counters = *args.work.counters;
  const auto num_kv_heads = static_cast<std::uint32_t>(args.kv.num_kv_heads);
  // Also a barrier: nobody reads the buffers of the work before any more.
  const auto take_for_block = [&](std::uint32_t& counter, std::uint32_t count) {
    __syncthreads();
    if (threadIdx.x == 0) {
      taken = atomicAdd(&counter, count);
    }
    __syncthreads();
    return taken;
  };
  const std::uint32_t num_tiles = counters.num_tile_items * num_kv_heads;
  if (num_tiles > 0) {
    TileWorker<Kv, kHeadDim> tiles(args, shared);
    for (;;) {
      const std::uint32_t work = take_for_block(counters.next_tile, 1);
      if (work >= num_tiles) {
        break;
      }
      tiles.run(args.work.tile_items[work / num_kv_heads], static_cast<int>(work % num_kv_heads));
    }
    wait_copies<0>();
  }
  const std::uint32_t num_splits = counters.num_split_items * num_kv_heads;
  SplitWorker<Kv, kHeadDim> splits(args, shared);
  const bool is_leader = threadIdx.x % kWarpSize == 0;
  const std::uint32_t warp = threadIdx.x / kWarpSize;
  // Little work is spread over all blocks, unless some are still at tiles.
  constexpr std::uint32_t kWarps = AttentionShape<Kv, kHeadDim>::kWarps;
  const std::uint32_t num_workers =
      num_tiles > 0 ? kWarps : min((num_splits + gridDim.x - 1) / gridDim.x, kWarps);
  std::uint32_t next = take_for_block(counters.next_split, num_workers) + warp;
  if (warp >= num_workers) {
    return;
  }
  for (;;) {
    // Only the leader's number counts; it was asked for before it is needed.
    const std::uint32_t work = __shfl_sync(kAllLanes, next, 0);
    if (work >= num_splits) {
      return;
    }
    next = is_leader ? atomicAdd(&counters.next_split, 1) : 0;
    splits.run(args.work.split_items[work / num_kv_heads], static_cast<int>(work % num_kv_heads));
  }
}

/// One warp a row, query head and 64 dims: merges the splits of its context in ascending order.
/// Also makes the counters ready for the next layer.
template <int kHeadDim>
__global__ void __launch_bounds__(kMergeWarps* kWarpSize)
    merge_kernel(const __grid_constant__ AttentionArguments args, float value_scale) {
  constexpr int kSlices = kHeadDim / (2 * kWarpSize);
  cudaGridDependencySynchronize();
  if (args.abort->aborted != 0) {
    return;
  }
  AttentionCounters& counters = *args.work.counters;
  if (blockIdx.x == 0 && blockIdx.y == 0 && threadIdx.x == 0) {
    counters.next_split = 0;
    counters.next_tile = 0;
  }
  const int slice = static_cast<int>(blockIdx.y * kMergeWarps + threadIdx.x / kWarpSize);
  const int head = slice / kSlices;
  if (blockIdx.x >= counters.num_merge_items || head >= args.num_q_heads) {
    return;
  }
  const MergeItem item = args.work.merge_items[blockIdx.x];
  const int dim = (slice % kSlices * kWarpSize + static_cast<int>(threadIdx.x) % kWarpSize) * 2;
  const std::int64_t first = std::int64_t{item.first_row_split} * args.num_q_heads + head;
  const std::int64_t stride = std::int64_t{item.stride} * args.num_q_heads;
  const SoftmaxState* states = args.work.states + first;
  const float* sums = args.work.sums + first * kHeadDim + dim;
  SoftmaxState merged = states[0];
  float2 sum = *reinterpret_cast<const float2*>(sums);
  // Everything is asked for before it is needed: the chain of factors is short, the memory far.
  constexpr std::uint32_t kAhead = 8;
  for (std::uint32_t split = 1; split < item.num_splits; split += kAhead) {
    SoftmaxState state[kAhead];
    float2 part[kAhead];
#pragma unroll
    for (std::uint32_t i = 0; i < kAhead; ++i) {
      const std::uint32_t at = min(split + i, item.num_splits - 1);
      state[i] = states[at * stride];
      part[i] = *reinterpret_cast<const float2*>(sums + at * stride * kHeadDim);
    }
#pragma unroll
    for (std::uint32_t i = 0; i < kAhead; ++i) {
      if (split + i < item.num_splits) {
        const MergeFactors factors = merge_split(merged, state[i]);
        sum.x = merge_value(sum.x, part[i].x, factors);
        sum.y = merge_value(sum.y, part[i].y, factors);
      }
    }
  }
  const float factor = __fmul_rn(__frcp_rn(merged.total), value_scale);
  bf16* out = args.out + (std::int64_t{item.row} * args.num_q_heads + head) * kHeadDim + dim;
  *reinterpret_cast<std::uint32_t*>(out) =
      Bf16Kv::pack(__fmul_rn(sum.x, factor), __fmul_rn(sum.y, factor));
}

/// The kernels of one pool type and head size.
struct Kernels {
  DType dtype;
  std::int64_t head_dim;
  void (*attention)(const AttentionArguments);
  std::size_t shared_bytes;
  void (*merge)(const AttentionArguments, float);
};

template <typename Kv, int kHeadDim>
Kernels kernels_of(DType dtype) {
  return {dtype, kHeadDim, attention_kernel<Kv, kHeadDim>,
          AttentionShape<Kv, kHeadDim>::kSharedBytes, merge_kernel<kHeadDim>};
}

const std::array<Kernels, 6>& all_kernels() {
  static const std::array<Kernels, 6> kernels = {
      kernels_of<Bf16Kv, 64>(DType::kBFloat16),   kernels_of<Bf16Kv, 128>(DType::kBFloat16),
      kernels_of<Bf16Kv, 256>(DType::kBFloat16),  kernels_of<Fp8Kv, 64>(DType::kFloat8E4M3),
      kernels_of<Fp8Kv, 128>(DType::kFloat8E4M3), kernels_of<Fp8Kv, 256>(DType::kFloat8E4M3)};
  return kernels;
}

Status check_params(const PagedAttentionParams& params) {
  const AttentionBucket& bucket = params.workspace.bucket;
  if (std::string error = attention_shape_error(bucket); !error.empty()) {
    return {StatusCode::kInvalidArgument, std::move(error)};
  }
  if (!is_supported(params.kv) || params.kv.head_dim != bucket.head_dim ||
      params.kv.num_kv_heads != bucket.num_kv_heads) {
    return {StatusCode::kInvalidArgument,
            "paged attention: no kernel for a " + std::string(to_string(params.kv.dtype)) +
                " pool with pages of " + std::to_string(params.kv.page_size) + ", " +
                std::to_string(params.kv.num_kv_heads) + " heads of " +
                std::to_string(params.kv.head_dim)};
  }
  if (params.num_sms < 1 || !(params.scale > 0.0F)) {
    return {StatusCode::kInvalidArgument, "paged attention: num_sms and scale must be above 0"};
  }
  return Status::ok();
}

}  // namespace

Status prepare_paged_attention() {
  for (const Kernels& kernels : all_kernels()) {
    Status status =
        allow_shared_bytes(kernels.attention, kernels.shared_bytes, "attention's shared memory");
    if (!status) {
      return status;
    }
  }
  return Status::ok();
}

Status launch_paged_attention(const PagedAttentionParams& params, device::CudaStream stream) {
  if (Status status = check_params(params); !status) {
    return status;
  }
  const AttentionBucket& bucket = params.workspace.bucket;
  const AttentionArguments arguments{.work = AttentionWork::of(params.workspace),
                                     .abort = params.abort,
                                     .spans = params.spans,
                                     .kv = params.kv,
                                     .q = params.q,
                                     .out = params.out,
                                     .scale = params.scale,
                                     .num_q_heads = static_cast<int>(bucket.num_q_heads)};
  const AttentionWork& work = arguments.work;
  const Kernels& kernels =
      *std::find_if(all_kernels().begin(), all_kernels().end(), [&](const Kernels& candidate) {
        return candidate.dtype == params.kv.dtype && candidate.head_dim == params.kv.head_dim;
      });
  const std::int64_t num_works =
      bucket.max_rows == 0
          ? 0
          : work.max_tile_items * bucket.num_kv_heads + work.max_split_items * bucket.num_kv_heads;
  const auto num_blocks = static_cast<unsigned>(std::min(params.num_sms, num_works));
  Status status =
      launch(kernels.attention,
             {.grid = dim3(num_blocks),
              .block = dim3(static_cast<unsigned>(attention_warps(bucket.head_dim)) * kWarpSize),
              .shared_bytes = kernels.shared_bytes},
             stream, "paged_attention", arguments);
  if (!status) {
    return status;
  }
  const std::int64_t num_slices = bucket.num_q_heads * bucket.head_dim / (2 * kWarpSize);
  return launch(
      kernels.merge,
      {.grid = dim3(static_cast<unsigned>(std::max<std::int64_t>(work.max_merge_items, 1)),
                    static_cast<unsigned>((num_slices + kMergeWarps - 1) / kMergeWarps)),
       .block = dim3(kMergeWarps * kWarpSize),
       .overlaps_predecessor = true},
      stream, "paged_attention_merge", arguments,
      params.kv.dtype == DType::kBFloat16 ? 1.0F : params.kv.value_scale);
}

}  // namespace fastfd::kernels::cuda
