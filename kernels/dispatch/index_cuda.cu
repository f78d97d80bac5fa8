#include <algorithm>
#include <string>

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/signal.cuh"
#include "kernels/dispatch/op_cuda.h"

namespace fastfd::kernels::cuda {
namespace {

constexpr std::uint32_t kThreads = 256;
constexpr std::uint32_t kWarps = kThreads / 32;

/// What all participants sent together. Every CTA works it out for itself, from headers that don't
/// change before their senders are answered, so all agree.
struct Arrivals {
  std::byte* slots[kMaxServers];              ///< nullptr: no message
  std::uint32_t token_base[kMaxServers + 1];  ///< first token of a peer
  std::uint32_t route_base[kMaxServers + 1];
  std::uint32_t num_tokens;
  std::uint32_t bad_peer;  ///< whose message can't be used, kMaxServers if none
};

/// One token's routes in its peer's window.
struct TokenView {
  std::uint32_t peer;
  std::uint32_t row;
  const std::uint32_t* experts;  ///< [num_routes]
  const float* weights;
  std::uint32_t num_routes;   ///< 0 if not valid
  std::uint32_t first_route;  ///< of all peers' routes
  bool valid;
};

/// How a token's routes stand to one expert.
struct Match {
  std::uint32_t equal = 0;
  std::uint32_t lower = 0;  ///< routes to experts before it
};

/// Addresses of a slot that is known to be there.
__device__ layout::DispatchSlot slot_at(const IndexParams& params, std::byte* slot) {
  return params.window.slot(slot, 0, 0);
}

/// Inclusive sum over a warp's lanes.
__device__ std::uint32_t scan_lanes(std::uint32_t value) {
#pragma unroll
  for (std::uint32_t offset = 1; offset < 32; offset *= 2) {
    const std::uint32_t before = __shfl_up_sync(kAllLanes, value, offset);
    value += threadIdx.x % 32 >= offset ? before : 0;
  }
  return value;
}

/// Called by all threads; the first kMaxServers take a peer each.
__device__ void read_headers(const IndexParams& params, Arrivals* arrivals) {
  __shared__ uint2 first_half;  // totals of the first warp
  const std::uint32_t peer = threadIdx.x;
  uint2 counts{0, 0};
  bool is_bad = false;
  if (peer < kMaxServers) {
    std::byte* window = peer < params.num_peers ? params.windows[peer] : nullptr;
    const bool ready = *params.ready != 0;
    const bool participates = ((params.control->participants >> peer) & 1U) != 0;
    std::byte* slot = nullptr;
    if (window != nullptr && ready && participates) {
      slot = window + params.window.grid.slot_offset(params.hop.lane, params.hop.buffer());
      const layout::SlotHeader* header = slot_at(params, slot).header;
      counts = {header->num_rows, header->num_routes};
      const layout::WindowDims& dims = params.window.dims;
      is_bad = counts.x > dims.max_rows || counts.y > counts.x * dims.max_routes_per_row;
      counts = is_bad ? uint2{0, 0} : counts;
    }
    arrivals->slots[peer] = slot;
    counts = {scan_lanes(counts.x), scan_lanes(counts.y)};
    if (peer == 31) {
      first_half = counts;
    }
    if (peer == 0) {
      arrivals->token_base[0] = arrivals->route_base[0] = 0;
      arrivals->bad_peer = kMaxServers;
    }
  }
  __syncthreads();
  if (peer < kMaxServers) {
    if (peer >= 32) {
      counts = {counts.x + first_half.x, counts.y + first_half.y};
    }
    arrivals->token_base[peer + 1] = counts.x;
    arrivals->route_base[peer + 1] = counts.y;
    // The bucket covers what the plan said: whoever goes beyond it sent more than planned.
    if (is_bad || counts.x > params.max_tokens || counts.y > params.max_routes) {
      atomicMin(&arrivals->bad_peer, peer);
    }
  }
  __syncthreads();
  if (peer == 0) {
    arrivals->num_tokens =
        arrivals->bad_peer == kMaxServers ? arrivals->token_base[kMaxServers] : 0;
  }
  __syncthreads();
}

__device__ __forceinline__ TokenView view_token(const IndexParams& params, const Arrivals& arrivals,
                                                std::uint32_t token) {
  std::uint32_t low = 0;  // the last peer whose first token is not behind this one
  std::uint32_t high = kMaxServers;
  while (high - low > 1) {
    const std::uint32_t middle = (low + high) / 2;
    (arrivals.token_base[middle] <= token ? low : high) = middle;
  }
  TokenView view{};
  view.peer = low;
  view.row = token - arrivals.token_base[low];
  const layout::DispatchSlot slot = slot_at(params, arrivals.slots[low]);
  const std::uint32_t begin = slot.route_offsets[view.row];
  const std::uint32_t end = slot.route_offsets[view.row + 1];
  const std::uint32_t num_routes = arrivals.route_base[low + 1] - arrivals.route_base[low];
  const bool is_last = token + 1 == arrivals.token_base[low + 1];
  // Together for all rows: offsets ascend from 0 to num_routes.
  view.valid = begin <= end && end <= num_routes &&
               end - begin <= params.window.dims.max_routes_per_row &&
               (view.row != 0 || begin == 0) && (!is_last || end == num_routes);
  view.num_routes = view.valid ? end - begin : 0;
  view.first_route = arrivals.route_base[low] + min(begin, num_routes);
  view.experts = slot.route_experts + begin;
  view.weights = slot.route_weights + begin;
  return view;
}

__device__ __forceinline__ Match match(const TokenView& token, std::uint32_t expert) {
  Match found;
#pragma unroll 8
  for (std::uint32_t r = 0; r < token.num_routes; ++r) {
    const std::uint32_t other = token.experts[r];
    found.equal += other == expert ? 1 : 0;
    found.lower += other < expert ? 1 : 0;
  }
  return found;
}

/// Over the CTA's threads: `lower` becomes the sum of all, `equal` that of the threads before, and
/// `*total` the sum of all `equal`. All threads call it.
__device__ __forceinline__ Match scan_threads(Match value, Match* warp_sums, std::uint32_t* total) {
  const std::uint32_t warp = threadIdx.x / 32;
  const Match inclusive{scan_lanes(value.equal), scan_lanes(value.lower)};
  if (threadIdx.x % 32 == 31) {
    warp_sums[warp] = inclusive;
  }
  __syncthreads();
  Match result{inclusive.equal - value.equal, 0};
  *total = 0;
#pragma unroll
  for (std::uint32_t i = 0; i < kWarps; ++i) {
    result.equal += i < warp ? warp_sums[i].equal : 0;
    result.lower += warp_sums[i].lower;
    *total += warp_sums[i].equal;
  }
  __syncthreads();
  return result;
}

/// Stores the routes of token `t` to `expert`, the first of them at `place`.
__device__ __forceinline__ void store_routes(const IndexParams& params, const TokenView& token,
                                             std::uint32_t t, std::uint32_t expert,
                                             const Match& found, std::uint32_t place) {
  std::uint32_t slot = token.first_route + found.lower;  // a token's routes ascend by expert
  for (std::uint32_t r = 0; found.equal > 0 && r < token.num_routes; ++r) {
    if (token.experts[r] == expert && place < params.max_routes) {
      params.tables.route_tokens[place] = t;
      params.tables.route_weights[place] = token.weights[r];
      params.tables.token_routes[slot++] = place++;
    }
  }
}

/// One expert's list. It begins behind all routes to lower experts, which this CTA counts itself.
__device__ void list_expert(const IndexParams& params, const Arrivals& arrivals,
                            std::uint32_t expert, Match* warp_sums) {
  TokenView token{};
  Match found;  // of the first tile, which is all there is unless the batch is large
  if (threadIdx.x < arrivals.num_tokens) {
    token = view_token(params, arrivals, threadIdx.x);
    found = match(token, expert);
  }
  Match counted = found;
  for (std::uint32_t t = threadIdx.x + kThreads; t < arrivals.num_tokens; t += kThreads) {
    counted.lower += match(view_token(params, arrivals, t), expert).lower;
  }
  std::uint32_t total = 0;
  Match before = scan_threads(counted, warp_sums, &total);
  std::uint32_t next = min(before.lower, params.max_routes);  // free place in the lists
  if (threadIdx.x == 0) {
    params.tables.expert_begin[expert] = next;
  }
  store_routes(params, token, threadIdx.x, expert, found, next + before.equal);
  next = min(next + total, params.max_routes);
  for (std::uint32_t first = kThreads; first < arrivals.num_tokens; first += kThreads) {
    const std::uint32_t t = first + threadIdx.x;
    token = TokenView{};
    found = Match{};
    if (t < arrivals.num_tokens) {
      token = view_token(params, arrivals, t);
      found = match(token, expert);
    }
    before = scan_threads(found, warp_sums, &total);
    store_routes(params, token, t, expert, found, next + before.equal);
    next = min(next + total, params.max_routes);
  }
  if (threadIdx.x == 0 && expert + 1 == params.num_experts) {
    params.tables.expert_begin[params.num_experts] = next;
  }
}

/// Per-token tables of kThreads tokens, and the checks that need only one thread a token.
__device__ void list_tokens(const IndexParams& params, const Arrivals& arrivals,
                            std::uint32_t first) {
  const std::uint32_t t = first + threadIdx.x;
  if (t >= arrivals.num_tokens) {
    return;
  }
  const TokenView token = view_token(params, arrivals, t);
  bool valid = token.valid;
  for (std::uint32_t r = 0; r < token.num_routes; ++r) {
    valid = valid && token.experts[r] < params.num_experts;
  }
  if (!valid) {
    give_up(params.abort, layout::AbortReason::kBadMessage, token.peer, params.hop,
            params.control->step, 0);
  }
  const std::size_t offset = static_cast<std::size_t>(token.row) * params.window.dims.row_bytes;
  params.tables.token_rows[t] = slot_at(params, arrivals.slots[token.peer]).rows + offset;
  params.tables.token_sources[t] = {token.peer, token.row};
  params.tables.token_route_begin[t] = token.first_route;
  if (t + 1 == arrivals.num_tokens) {
    params.tables.token_route_begin[t + 1] = arrivals.route_base[kMaxServers];
  }
}

/// CTAs 0 .. num_experts - 1 list an expert's routes, those behind list tokens.
__global__ void __launch_bounds__(kThreads, 4) index_kernel(const IndexParams params) {
  __shared__ Arrivals arrivals;
  __shared__ Match warp_sums[kWarps];
  cudaGridDependencySynchronize();
  read_headers(params, &arrivals);
  if (blockIdx.x < params.num_experts) {
    list_expert(params, arrivals, blockIdx.x, warp_sums);
    return;
  }
  const std::uint32_t first = (blockIdx.x - params.num_experts) * kThreads;
  list_tokens(params, arrivals, first);
  if (first != 0) {
    return;
  }
  if (threadIdx.x < params.num_peers) {
    params.tables.peer_rows[threadIdx.x] =
        arrivals.token_base[threadIdx.x + 1] - arrivals.token_base[threadIdx.x];
  }
  if (threadIdx.x == 0) {
    *params.tables.num_tokens = arrivals.num_tokens;
    if (arrivals.num_tokens == 0) {
      params.tables.token_route_begin[0] = 0;
    }
    if (arrivals.bad_peer != kMaxServers) {
      give_up(params.abort, layout::AbortReason::kBadMessage, arrivals.bad_peer, params.hop,
              params.control->step, 0);
    }
  }
}

}  // namespace

Status launch_index(const IndexParams& params, device::CudaStream stream) {
  const char* problem = nullptr;
  if (params.num_peers > kMaxServers || params.hop.lane >= kMaxLanes) {
    problem = "too many peers or no such lane";
  } else if (params.num_experts == 0) {
    problem = "a server without experts";
  }
  if (problem != nullptr) {
    return {StatusCode::kInvalidArgument, std::string("index: ") + problem};
  }
  const std::uint32_t token_ctas = std::max((params.max_tokens + kThreads - 1) / kThreads, 1U);
  return launch(
      index_kernel,
      {.grid = params.num_experts + token_ctas, .block = kThreads, .overlaps_predecessor = true},
      stream, "index", params);
}

}  // namespace fastfd::kernels::cuda
