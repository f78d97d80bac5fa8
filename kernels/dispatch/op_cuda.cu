#include <cuda_fp8.h>

#include <algorithm>
#include <string>

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/row_math.cuh"
#include "kernels/cuda/signal.cuh"
#include "kernels/dispatch/choose.cuh"
#include "kernels/dispatch/op_cuda.h"
#include "kernels/dispatch/router.cuh"

namespace fastfd::kernels::cuda {
namespace {

constexpr std::uint32_t kTargetCtas = 128;  // of the router kernel: about one an SM

__host__ __device__ bool has_router(const DispatchParams& params) {
  return params.router.scoring != RouterScoring::kAll && params.max_rows > 0;
}

/// Eight values as they travel.
template <bool kFp8>
struct Packed;

template <>
struct Packed<false> {
  uint4 values;

  __device__ void pack(const Group& group) { values = pack_bf16(group); }
  __device__ void store(std::byte* row, std::uint32_t column, const layout::RowLayout&) const {
    *reinterpret_cast<uint4*>(row + column * sizeof(bf16)) = values;
  }
};

template <>
struct Packed<true> {
  uint2 values;
  float scale;

  static __device__ std::uint32_t pack_pair(float low, float high) {
    return __nv_cvt_float2_to_fp8x2({low, high}, __NV_SATFINITE, __NV_E4M3);
  }

  /// 16 neighbouring lanes hold the 128 values of a scale.
  __device__ void pack(const Group& group) {
    constexpr float kTooSmall = 1e-30F;  // its reciprocal would not be finite
    float largest = 0.0F;
#pragma unroll
    for (const float value : group.values) {
      largest = fmaxf(largest, fabsf(value));
    }
    const std::uint32_t lanes = 0xffffU << (threadIdx.x & 16U);
#pragma unroll
    for (int offset = 8; offset > 0; offset /= 2) {
      largest = fmaxf(largest, __shfl_xor_sync(lanes, largest, offset));
    }
    scale = largest > kTooSmall ? largest / layout::kLargestE4M3 : 1.0F;
    const float inverse = 1.0F / scale;
    const float* v = group.values;
    values.x = pack_pair(v[0] * inverse, v[1] * inverse) | pack_pair(v[2] * inverse, v[3] * inverse)
                                                               << 16;
    values.y = pack_pair(v[4] * inverse, v[5] * inverse) | pack_pair(v[6] * inverse, v[7] * inverse)
                                                               << 16;
  }
  __device__ void store(std::byte* row, std::uint32_t column,
                        const layout::RowLayout& layout) const {
    *reinterpret_cast<uint2*>(row + column) = values;
    if (column % layout::kScaleGroup == 0) {
      layout.scales(row)[column / layout::kScaleGroup] = scale;
    }
  }
};

/// What a CTA keeps at hand.
struct Shared {
  float logits[kMaxExperts];
  float warp_sums[kRowThreads / 32];
  // Copied while the router kernel runs, so that nobody waits for them afterwards.
  ExpertPlacement::Target placement[kMaxExperts];
  std::byte* windows[kMaxServers];
  // Where the rows of the CTA's token go.
  std::uint32_t num_targets;
  std::byte* targets[kMaxTopK];
};

__device__ void copy_tables(const DispatchParams& params, Shared* shared) {
  for (std::uint32_t e = threadIdx.x; e < params.router.num_experts; e += kRowThreads) {
    shared->placement[e] = params.placement[e];
  }
  if (threadIdx.x < params.num_servers) {
    shared->windows[threadIdx.x] = params.windows[threadIdx.x];
  }
}

/// One warp gives the token a position in the window of every server that holds one of its experts
/// and stores its routes there. One counter a server advances by (1 row, n routes) at a time, so
/// that route offsets ascend with the positions although rows come in any order.
__device__ void place_row(const DispatchParams& params, std::uint32_t row,
                          const choose::Route& route, bool aborted, Shared* shared) {
  const std::uint32_t lane = threadIdx.x % 32;
  const bool has_route = lane < params.router.top_k;
  for (std::uint32_t server = lane; server < params.num_servers; server += 32) {
    params.row_index[static_cast<std::size_t>(server) * params.max_rows + row] = -1;
  }
  __syncwarp();
  ExpertPlacement::Target target;
  std::byte* window = nullptr;
  if (has_route && !aborted) {
    target = shared->placement[route.expert];
    window = target.ffn_rank < params.num_servers ? shared->windows[target.ffn_rank] : nullptr;
    if (window == nullptr) {
      give_up(params.abort, layout::AbortReason::kBadPlacement, target.ffn_rank, params.hop,
              params.control->step, 0);
    }
  }
  const std::uint32_t routed = __ballot_sync(kAllLanes, window != nullptr);
  bool is_leader = false;
  layout::DispatchSlot slot{};
  std::uint32_t position = 0;
  if (window != nullptr) {
    const std::uint32_t same_server = __match_any_sync(routed, target.ffn_rank);
    const std::uint32_t before = same_server & ((1U << lane) - 1);
    is_leader = before == 0;
    unsigned long long ticket = 0;
    if (is_leader) {
      ticket =
          atomicAdd(reinterpret_cast<unsigned long long*>(&params.counters->sent[target.ffn_rank]),
                    1ULL << 32 | __popc(same_server));
    }
    ticket = __shfl_sync(same_server, ticket, __ffs(static_cast<int>(same_server)) - 1);
    position = static_cast<std::uint32_t>(ticket >> 32);
    const std::uint32_t first_route = static_cast<std::uint32_t>(ticket);
    slot = params.window.slot(window, params.hop.lane, params.hop.buffer());
    slot.route_experts[first_route + __popc(before)] = target.local_expert;
    slot.route_weights[first_route + __popc(before)] = route.weight;
    if (is_leader) {
      slot.route_offsets[position] = first_route;
      params.row_index[static_cast<std::size_t>(target.ffn_rank) * params.max_rows + row] =
          static_cast<std::int32_t>(position);
    }
  }
  const std::uint32_t leaders = __ballot_sync(kAllLanes, is_leader);
  if (is_leader) {
    shared->targets[__popc(leaders & ((1U << lane) - 1))] = params.row.row(slot.rows, position);
  }
  if (lane == 0) {
    shared->num_targets = __popc(leaders);
  }
}

/// Sums the chunks of the router kernel: logits [num_experts] of one row.
__device__ void sum_logits(const DispatchParams& params, std::uint32_t row, float inverse,
                           float* logits) {
  constexpr std::uint32_t kMaxChunks = num_router_chunks(kMaxHiddenDim);
  const std::uint32_t num_experts = params.router.num_experts;
  const std::uint32_t num_chunks = num_router_chunks(params.hidden_dim);
  const std::size_t chunk_stride = static_cast<std::size_t>(params.max_rows) * num_experts;
  for (std::uint32_t e = threadIdx.x; e < num_experts; e += kRowThreads) {
    const float* partial = params.partial_logits + static_cast<std::size_t>(row) * num_experts + e;
    float parts[kMaxChunks];
#pragma unroll
    for (std::uint32_t chunk = 0; chunk < kMaxChunks; ++chunk) {  // all in flight together
      parts[chunk] = chunk < num_chunks ? partial[chunk * chunk_stride] : 0.0F;
    }
    float sum = 0.0F;
#pragma unroll
    for (std::uint32_t chunk = 0; chunk < kMaxChunks; ++chunk) {
      sum += parts[chunk];
    }
    logits[e] = sum * inverse;
  }
}

/// Tells every server what it got, also if that is nothing.
__device__ void publish(const DispatchParams& params, const layout::LaneControl& control,
                        std::uint32_t server, std::byte* window) {
  const std::uint64_t sent = __ldcg(&params.counters->sent[server]);
  const bool aborted = is_aborted(params.abort);
  params.counters->sent[server] = 0;
  if (control.num_rows > params.max_rows) {
    give_up(params.abort, layout::AbortReason::kBadPlan, server, params.hop, control.step, 0);
    return;
  }
  if (window == nullptr || aborted) {
    return;
  }
  const auto num_rows = static_cast<std::uint32_t>(sent >> 32);
  const auto num_routes = static_cast<std::uint32_t>(sent);
  const layout::DispatchSlot slot =
      params.window.slot(window, params.hop.lane, params.hop.buffer());
  slot.route_offsets[num_rows] = num_routes;
  params.sent_rows[server] = num_rows;
  raise_flag(reinterpret_cast<std::byte*>(slot.flag), params.hop, control, num_rows, num_routes);
}

/// One CTA a row; the last one to finish raises the flags. The row is loaded, normalised and packed
/// while the router kernel still runs: that one has waited for whoever wrote the residual.
template <bool kFp8>
__global__ void __launch_bounds__(kRowThreads, 3) send_kernel(const DispatchParams params) {
  __shared__ Shared shared;
  if (!has_router(params)) {
    cudaGridDependencySynchronize();  // nobody in front has waited for what is read here
  }
  copy_tables(params, &shared);
  const std::uint32_t row = blockIdx.x;
  const layout::LaneControl control = *params.control;
  const bool has_row = row < min(control.num_rows, params.max_rows);
  Packed<kFp8> packed[kMaxGroups];
  float inverse = 0.0F;
  if (has_row) {
    const std::size_t base = static_cast<std::size_t>(row) * params.hidden_dim;
    Group groups[kMaxGroups];
    float squares = 0.0F;
#pragma unroll
    for (std::uint32_t i = 0; i < kMaxGroups; ++i) {
      if (group_column(i) < params.hidden_dim) {
        groups[i] = load_group(params.residual + base + group_column(i));
        squares += sum_of_squares(groups[i]);
      }
    }
    inverse = inverse_rms(squares, params.hidden_dim, params.norm.eps, shared.warp_sums);
#pragma unroll
    for (std::uint32_t i = 0; i < kMaxGroups; ++i) {
      const std::uint32_t column = group_column(i);
      if (column < params.hidden_dim) {
        const Group normed = normalize(groups[i], inverse, params.norm, column);
        packed[i].pack(normed);
        if (params.normed != nullptr) {
          store_group(params.normed + base + column, normed);
        }
      }
    }
  }

  cudaGridDependencySynchronize();
  if (has_row) {
    if (params.router.scoring != RouterScoring::kAll) {
      sum_logits(params, row, inverse, shared.logits);
    }
    __syncthreads();
    if (threadIdx.x < 32) {
      const bool aborted = is_aborted(params.abort);  // on its way while the warp chooses
      const choose::Route route = choose::choose_experts(params.router, shared.logits);
      if (threadIdx.x < params.router.top_k && params.experts != nullptr) {
        const std::size_t at = static_cast<std::size_t>(row) * params.router.top_k + threadIdx.x;
        params.experts[at] = static_cast<std::int32_t>(route.expert);
        params.weights[at] = route.weight;
      }
      place_row(params, row, route, aborted, &shared);
    }
    __syncthreads();
    for (std::uint32_t target = 0; target < shared.num_targets; ++target) {
#pragma unroll
      for (std::uint32_t i = 0; i < kMaxGroups; ++i) {
        if (group_column(i) < params.hidden_dim) {
          packed[i].store(shared.targets[target], group_column(i), params.row);
        }
      }
    }
  }
  if (is_last_cta(&params.counters->ctas_done, gridDim.x) && threadIdx.x < params.num_servers) {
    publish(params, control, threadIdx.x, shared.windows[threadIdx.x]);
  }
}

const char* find_problem(const DispatchParams& params) {
  const RouterParams& router = params.router;
  if (params.hidden_dim == 0 || params.hidden_dim % layout::kScaleGroup != 0 ||
      params.hidden_dim > kMaxHiddenDim) {
    return "hidden_dim must be a multiple of 128, at most 8192";
  }
  if (router.num_experts == 0 || router.num_experts > kMaxExperts) {
    return "num_experts must be 1 .. 512";
  }
  if (router.top_k == 0 || router.top_k > kMaxTopK || router.top_k > router.num_experts) {
    return "top_k must be 1 .. 32 and num_experts";
  }
  if (router.num_groups == 0 || router.num_groups > kMaxExpertGroups ||
      router.num_experts % router.num_groups != 0 || router.top_groups == 0 ||
      router.top_groups > router.num_groups ||
      router.top_k > router.num_experts / router.num_groups * router.top_groups) {
    return "experts must form 1 .. 32 groups of equal size, of which top_groups have top_k experts";
  }
  const std::uint32_t max_routes = params.window.dims.max_routes_per_row;
  if (router.scoring == RouterScoring::kAll) {
    if (router.top_k != router.num_experts || router.top_k > max_routes * params.num_servers) {
      return "without a router top_k must be num_experts, at most max_routes_per_row a server";
    }
  } else if (router.top_k > max_routes) {
    return "top_k must be at most the window's max_routes_per_row";
  }
  if (params.num_servers > kMaxServers || params.hop.lane >= kMaxLanes) {
    return "too many servers or no such lane";
  }
  if (params.max_rows > params.window.dims.max_rows) {
    return "more rows than the window holds";
  }
  if (params.row.dtype != DType::kBFloat16 && params.row.dtype != DType::kFloat8E4M3) {
    return "rows must be bfloat16 or float8_e4m3";
  }
  if (params.row.hidden_dim != params.hidden_dim ||
      params.row.row_bytes() != params.window.dims.row_bytes) {
    return "the window's rows are not of this layout";
  }
  if (params.norm.dtype != DType::kBFloat16 && params.norm.dtype != DType::kFloat32) {
    return "norm weights must be bfloat16 or float32";
  }
  return (params.experts == nullptr) == (params.weights == nullptr)
             ? nullptr
             : "experts and weights come together";
}

}  // namespace

std::size_t router_scratch_floats(std::uint32_t max_rows, std::uint32_t num_experts,
                                  std::uint32_t hidden_dim) {
  return std::size_t{num_router_chunks(hidden_dim)} * max_rows * num_experts;
}

Status launch_dispatch(const DispatchParams& params, device::CudaStream stream) {
  if (const char* problem = find_problem(params)) {
    return {StatusCode::kInvalidArgument, std::string("dispatch: ") + problem};
  }
  if (has_router(params)) {
    const std::uint32_t chunks = num_router_chunks(params.hidden_dim);
    const std::uint32_t experts = (params.router.num_experts + kRouterExperts - 1) / kRouterExperts;
    const std::uint32_t tiles = (params.max_rows + kRouterRows - 1) / kRouterRows;
    const std::uint32_t groups = std::clamp(kTargetCtas / (chunks * experts), 1U, tiles);
    Status status =
        launch(router_kernel, {.grid = dim3(chunks, experts, groups), .block = kRouterThreads},
               stream, "router", params);
    if (!status) {
      return status;
    }
  }
  const LaunchShape shape{
      .grid = std::max(params.max_rows, 1U), .block = kRowThreads, .overlaps_predecessor = true};
  return params.row.dtype == DType::kFloat8E4M3
             ? launch(send_kernel<true>, shape, stream, "dispatch", params)
             : launch(send_kernel<false>, shape, stream, "dispatch", params);
}

}  // namespace fastfd::kernels::cuda
