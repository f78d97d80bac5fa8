#include <algorithm>
#include <string>

#include "kernels/attention/merge.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/latent_attention/op_cuda.h"
#include "kernels/latent_attention/score_warps.cuh"
#include "kernels/latent_attention/sum_warps.cuh"

namespace fastfd::kernels::cuda {
namespace {

using latent::Arguments;
using latent::Shared;

/// A persistent grid whose blocks take items of 64 queries. Warpgroups specialise: the tensor cores
/// multiply queries and tokens for one tile while they sum another.
__global__ void __maxnreg__(latent::kMaxRegisters)
    latent_attention_kernel(const __grid_constant__ Arguments args) {
  extern __shared__ __align__(kSwizzleAtomBytes) std::byte memory[];
  Shared& shared = *reinterpret_cast<Shared*>(memory);
  cudaTriggerProgrammaticLaunchCompletion();  // the merge may get ready
  if (threadIdx.x == 0) {
    shared.init_barriers();
  }
  if (__syncthreads_or(static_cast<int>(args.abort->aborted)) != 0) {
    return;
  }
  if (threadIdx.x < latent::kWarpgroupSize) {
    latent::ScoreWarps(args, shared).run();
  } else {
    latent::SumWarps(args, shared).run();
  }
}

bool is_valid(const PagedLatents& latents) {
  return latents.page_size > 0 && (latents.page_size & (latents.page_size - 1)) == 0 &&
         latents.pages_per_slot > 0;
}

Status check_params(const LatentAttentionParams& params) {
  const AttentionBucket& bucket = params.workspace.bucket;
  if (!bucket.is_latent || bucket.head_dim != kLatentDim) {
    return {StatusCode::kInvalidArgument, "latent attention: not a workspace of latent_bucket()"};
  }
  if (std::string error = attention_shape_error(bucket); !error.empty()) {
    return {StatusCode::kInvalidArgument, std::move(error)};
  }
  if (!is_valid(params.latents)) {
    return {StatusCode::kInvalidArgument,
            "latent attention: no kernel for pages of " + std::to_string(params.latents.page_size)};
  }
  if (params.num_sms < 1 || !(params.scale > 0.0F)) {
    return {StatusCode::kInvalidArgument, "latent attention: num_sms and scale must be above 0"};
  }
  return Status::ok();
}

}  // namespace

AttentionBucket latent_bucket(std::int64_t max_rows, std::int64_t max_spans,
                              std::int64_t max_context, std::int64_t num_heads) {
  return {.max_rows = max_rows,
          .max_spans = max_spans,
          .max_context = max_context,
          .num_q_heads = num_heads,
          .num_kv_heads = 1,
          .head_dim = kLatentDim,
          .is_latent = true};
}

Status prepare_latent_attention() {
  return allow_shared_bytes(latent_attention_kernel, sizeof(Shared),
                            "latent attention's shared memory");
}

Status launch_latent_attention(const LatentAttentionParams& params, device::CudaStream stream) {
  if (Status status = check_params(params); !status) {
    return status;
  }
  constexpr float kLog2E = 1.4426950408889634F;
  const AttentionBucket& bucket = params.workspace.bucket;
  const Arguments arguments{.work = AttentionWork::of(params.workspace),
                            .abort = params.abort,
                            .spans = params.spans,
                            .latents = params.latents,
                            .queries = params.queries,
                            .out = params.out,
                            .scale = params.scale * kLog2E,
                            .num_heads = static_cast<int>(bucket.num_q_heads)};
  const AttentionWork& work = arguments.work;
  const std::int64_t num_items =
      bucket.max_rows == 0 ? 0 : work.max_tile_items + work.max_split_items;
  const auto num_blocks =
      static_cast<unsigned>(std::min({params.num_sms, kMaxLatentBlocks, num_items}));
  Status status = launch(
      latent_attention_kernel,
      {.grid = dim3(num_blocks), .block = dim3(latent::kThreads), .shared_bytes = sizeof(Shared)},
      stream, "latent_attention", arguments);
  if (!status) {
    return status;
  }
  const AttentionArguments merged{.work = work,
                                  .abort = params.abort,
                                  .spans = params.spans,
                                  .kv = {},
                                  .q = params.queries,
                                  .out = params.out,
                                  .scale = params.scale,
                                  .num_q_heads = arguments.num_heads};
  return launch_merge(merge_kernel<kLatentDim>, merged, bucket, 1.0F, stream);
}

}  // namespace fastfd::kernels::cuda
