#include <algorithm>
#include <string>

#include "kernels/combine/op_cuda.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/row_math.cuh"
#include "kernels/cuda/signal.cuh"

namespace fastfd::kernels::cuda {
namespace {

/// More CTAs than an H200 holds at once gain nothing; each takes several tokens then.
constexpr std::uint32_t kMaxSendCtas = 1024;
constexpr std::uint32_t kRouteBatch = 8;  ///< route outputs in flight a thread

bool is_summed(DType dtype) { return dtype == DType::kBFloat16 || dtype == DType::kFloat32; }

/// Eight values as they lie in memory.
template <typename T>
struct RawGroup;

template <>
struct RawGroup<bf16> {
  uint4 packed;
  __device__ void load(const bf16* source) { packed = *reinterpret_cast<const uint4*>(source); }
  __device__ Group unpack() const { return unpack_bf16(packed); }
};

template <>
struct RawGroup<float> {
  Group group;
  __device__ void load(const float* source) { group = load_group(source); }
  __device__ Group unpack() const { return group; }
};

/// sum += weight * output over a token's routes, in order. Loads are issued before the first is
/// needed: for few tokens this kernel is a chain of waits for memory.
template <typename Output>
__device__ Group sum_routes(const CombineSendParams& params, std::uint32_t begin, std::uint32_t end,
                            std::uint32_t column) {
  const auto* outputs = static_cast<const Output*>(params.route_outputs) + column;
  Group sum{};
  for (std::uint32_t first = begin; first < end; first += kRouteBatch) {
    std::uint32_t routes[kRouteBatch];
    float weights[kRouteBatch];
    RawGroup<Output> batch[kRouteBatch];
#pragma unroll
    for (std::uint32_t i = 0; i < kRouteBatch; ++i) {
      if (first + i < end) {
        routes[i] = params.routes.token_routes[first + i];
      }
    }
#pragma unroll
    for (std::uint32_t i = 0; i < kRouteBatch; ++i) {
      if (first + i < end) {
        weights[i] = params.route_weights[routes[i]];
        batch[i].load(outputs + static_cast<std::size_t>(routes[i]) * params.hidden_dim);
      }
    }
#pragma unroll
    for (std::uint32_t i = 0; i < kRouteBatch; ++i) {
      if (first + i < end) {
        const Group output = batch[i].unpack();
#pragma unroll
        for (std::uint32_t j = 0; j < kGroupValues; ++j) {
          sum.values[j] = __fmaf_rn(weights[i], output.values[j], sum.values[j]);
        }
      }
    }
  }
  return sum;
}

/// What a CTA must know of a token before it can read its routes.
struct TokenWork {
  TokenSource source;
  std::uint32_t begin;
  std::uint32_t end;

  __device__ TokenWork(const CombineSendParams& params, std::uint32_t token)
      : source(params.token_sources[token]),
        begin(params.routes.token_route_begin[token]),
        end(params.routes.token_route_begin[token + 1]) {}
};

template <typename Output, typename Partial>
__device__ void send_token(const CombineSendParams& params, const TokenWork& work) {
  const layout::CombineSlot slot =
      params.window.slot(params.windows[work.source.peer], params.hop.lane, params.hop.buffer());
  auto* row = reinterpret_cast<Partial*>(slot.rows + static_cast<std::size_t>(work.source.row) *
                                                         params.window.dims.row_bytes);
  for (std::uint32_t column = threadIdx.x * kGroupValues; column < params.hidden_dim;
       column += kRowThreads * kGroupValues) {
    store_group(row + column, sum_routes<Output>(params, work.begin, work.end, column));
  }
}

/// What a thread needs to answer its peer, read in advance.
struct Answer {
  std::byte* window = nullptr;  ///< nullptr: nobody to be answered
  std::uint32_t num_rows = 0;
  layout::LaneControl control;

  __device__ explicit Answer(const CombineSendParams& params) {
    const std::uint32_t peer = threadIdx.x;
    if (peer < params.num_peers) {
      control = *params.control;
      num_rows = params.peer_rows[peer];
      window = params.windows[peer];
      window = ((control.participants >> peer) & 1U) != 0 ? window : nullptr;
    }
  }

  __device__ void send(const CombineSendParams& params) const {
    if (window == nullptr || is_aborted(params.abort)) {
      return;
    }
    const layout::CombineSlot slot =
        params.window.slot(window, params.hop.lane, params.hop.buffer());
    raise_flag(reinterpret_cast<std::byte*>(slot.flag), params.hop, control, num_rows,
               /*num_routes=*/0);
  }
};

/// CTAs take tokens in turn; the last one to finish raises the flags.
template <typename Output, typename Partial>
__global__ void __launch_bounds__(kRowThreads) combine_send_kernel(const CombineSendParams params) {
  cudaGridDependencySynchronize();
  // What the lane's own kernels found wrong they said before this one; another lane may set the
  // word at any moment, and then nobody reads what is stored here.
  const bool aborted = is_aborted(params.abort);
  const std::uint32_t num_tokens = *params.num_tokens;
  const Answer answer(params);
  std::uint32_t token = blockIdx.x;
  if (token < params.max_tokens) {
    TokenWork work(params, token);  // together with the count: stale if there is no such token
    if (!aborted) {
      while (token < num_tokens) {
        send_token<Output, Partial>(params, work);
        token += gridDim.x;
        if (token < num_tokens) {
          work = TokenWork(params, token);
        }
      }
    }
  }
  if (is_last_cta(params.ctas_done, gridDim.x)) {
    answer.send(params);
  }
}

/// Sum over the ranks of eight columns of a row.
template <typename Partial>
__device__ Group sum_partials(const CombineReceiveParams& params, const std::byte* const* rows,
                              std::uint32_t num_rows, std::uint32_t column) {
  Group sum{};
  for (std::uint32_t i = 0; i < num_rows; ++i) {
    const Group partial = load_group(reinterpret_cast<const Partial*>(rows[i]) + column);
#pragma unroll
    for (std::uint32_t j = 0; j < kGroupValues; ++j) {
      sum.values[j] += partial.values[j];
    }
  }
  return sum;
}

/// The first warp lists where the row's partial sums lie, by ascending rank.
__device__ void find_partials(const CombineReceiveParams& params, std::uint32_t row,
                              const std::byte** rows, std::uint32_t* num_rows) {
  const std::uint32_t lane = threadIdx.x;
  std::uint32_t found = 0;
  for (std::uint32_t first = 0; first < params.num_servers; first += 32) {
    const std::uint32_t rank = first + lane;
    const std::byte* window = nullptr;
    std::int32_t index = -1;
    if (rank < params.num_servers) {
      window = params.windows[rank];
      index = params.row_index[static_cast<std::size_t>(rank) * params.max_rows + row];
    }
    index = window == nullptr ? -1 : index;
    const std::uint32_t there = __ballot_sync(kAllLanes, index >= 0);
    if (index >= 0) {
      const std::size_t offset =
          params.window.grid.slot_offset(params.hop.lane, params.hop.buffer()) +
          layout::CombineLayout::rows_offset() +
          static_cast<std::size_t>(index) * params.window.dims.row_bytes;
      rows[found + __popc(there & ((1U << lane) - 1))] = window + offset;
    }
    found += __popc(there);
  }
  if (lane == 0) {
    *num_rows = found;
  }
}

/// One CTA a row.
template <typename Partial>
__global__ void __launch_bounds__(kRowThreads)
    combine_receive_kernel(const CombineReceiveParams params) {
  __shared__ const std::byte* partial_rows[kMaxServers];
  __shared__ std::uint32_t num_partials;
  __shared__ float warp_sums[kRowThreads / 32];
  __shared__ bool aborted;
  cudaGridDependencySynchronize();
  std::uint32_t row = blockIdx.x;
  if (params.samples != nullptr) {
    if (blockIdx.x >= params.control->num_samples) {
      return;
    }
    row = params.samples[blockIdx.x].row;
  }
  if (row >= min(params.control->num_rows, params.max_rows)) {
    return;
  }
  if (threadIdx.x == 0) {
    aborted = is_aborted(params.abort);
  }
  if (threadIdx.x < 32) {
    find_partials(params, row, partial_rows, &num_partials);
  }
  Group groups[kMaxGroups];
  float* residual = params.residual + static_cast<std::size_t>(row) * params.hidden_dim;
#pragma unroll
  for (std::uint32_t i = 0; i < kMaxGroups; ++i) {
    if (group_column(i) < params.hidden_dim) {
      groups[i] = load_group(residual + group_column(i));
    }
  }
  __syncthreads();
  if (aborted) {
    return;
  }
  float squares = 0.0F;
#pragma unroll
  for (std::uint32_t i = 0; i < kMaxGroups; ++i) {
    if (group_column(i) < params.hidden_dim) {
      const Group sum = sum_partials<Partial>(params, partial_rows, num_partials, group_column(i));
#pragma unroll
      for (std::uint32_t j = 0; j < kGroupValues; ++j) {
        groups[i].values[j] += sum.values[j];
      }
      store_group(residual + group_column(i), groups[i]);
      squares += sum_of_squares(groups[i]);
    }
  }
  if (params.norm.values == nullptr) {
    return;
  }
  const float inverse = inverse_rms(squares, params.hidden_dim, params.norm.eps, warp_sums);
  bf16* y = params.y + static_cast<std::size_t>(blockIdx.x) * params.hidden_dim;
#pragma unroll
  for (std::uint32_t i = 0; i < kMaxGroups; ++i) {
    if (group_column(i) < params.hidden_dim) {
      store_group(y + group_column(i), normalize(groups[i], inverse, params.norm, group_column(i)));
    }
  }
}

Status invalid(const char* op, const char* problem) {
  return {StatusCode::kInvalidArgument, std::string(op) + ": " + problem};
}

const char* find_problem(std::uint32_t hidden_dim, DType combine_dtype,
                         const layout::CombineLayout& window, std::uint32_t num_peers,
                         const layout::LaneHop& hop) {
  if (hidden_dim == 0 || hidden_dim % kGroupValues != 0) {
    return "hidden_dim must be a multiple of 8";
  }
  if (!is_summed(combine_dtype)) {
    return "combine_dtype must be bfloat16 or float32";
  }
  if (window.dims.row_bytes != hidden_dim * dtype_bytes(combine_dtype)) {
    return "the window's rows are not of this layout";
  }
  return num_peers <= kMaxServers && hop.lane < kMaxLanes ? nullptr
                                                          : "too many peers or no such lane";
}

}  // namespace

Status launch_combine_send(const CombineSendParams& params, device::CudaStream stream) {
  constexpr const char* kName = "combine send";
  if (const char* problem = find_problem(params.hidden_dim, params.combine_dtype, params.window,
                                         params.num_peers, params.hop)) {
    return invalid(kName, problem);
  }
  if (!is_summed(params.output_dtype)) {
    return invalid(kName, "output_dtype must be bfloat16 or float32");
  }
  const LaunchShape shape{.grid = std::clamp(params.max_tokens, 1U, kMaxSendCtas),
                          .block = kRowThreads,
                          .overlaps_predecessor = true};
  const bool from_float = params.output_dtype == DType::kFloat32;
  if (params.combine_dtype == DType::kFloat32) {
    return launch(from_float ? combine_send_kernel<float, float> : combine_send_kernel<bf16, float>,
                  shape, stream, kName, params);
  }
  return launch(from_float ? combine_send_kernel<float, bf16> : combine_send_kernel<bf16, bf16>,
                shape, stream, kName, params);
}

Status launch_combine_receive(const CombineReceiveParams& params, device::CudaStream stream) {
  constexpr const char* kName = "combine receive";
  if (const char* problem = find_problem(params.hidden_dim, params.combine_dtype, params.window,
                                         params.num_servers, params.hop)) {
    return invalid(kName, problem);
  }
  if (params.hidden_dim > kMaxHiddenDim) {
    return invalid(kName, "hidden_dim must be at most 8192");
  }
  if (params.norm.values != nullptr && !is_summed(params.norm.dtype)) {
    return invalid(kName, "norm weights must be bfloat16 or float32");
  }
  const LaunchShape shape{.grid = params.samples == nullptr ? params.max_rows : params.max_samples,
                          .block = kRowThreads,
                          .overlaps_predecessor = true};
  return launch(params.combine_dtype == DType::kFloat32 ? combine_receive_kernel<float>
                                                        : combine_receive_kernel<bf16>,
                shape, stream, kName, params);
}

}  // namespace fastfd::kernels::cuda
