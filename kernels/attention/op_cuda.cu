#include <algorithm>
#include <array>

#include "kernels/attention/merge.cuh"
#include "kernels/attention/split_worker.cuh"
#include "kernels/attention/tile_worker.cuh"
#include "kernels/cuda/launch.cuh"

namespace fastfd::kernels::cuda {
namespace {

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
  return launch_merge(kernels.merge, arguments, bucket,
                      params.kv.dtype == DType::kBFloat16 ? 1.0F : params.kv.value_scale, stream);
}

}  // namespace fastfd::kernels::cuda
