// Three kernels a layer. Convolution: a warp a row and head, with the inputs before a piece from
// the state. Delta rule: columns of a head's matrix don't see each other, so a block has 32 of
// them in registers and walks through its span's rows. Gated norm: a warp a row and head.

#include <cuda_bf16.h>

#include <string>

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/reduce.cuh"
#include "kernels/gated_delta_net/op_cuda.h"

namespace fastfd::kernels::cuda {
namespace {

constexpr int kWarps = 4;
constexpr int kThreads = kWarps * kWarpSize;
constexpr float kNormEps = 1e-6F;  // of queries and keys

/// Threads that share a column: neighbours, so that two shuffles add up what they have.
constexpr int kParts = 4;
constexpr int kColumns = kThreads / kParts;
static_assert(kColumns == kDeltaColumns);
/// Rows whose queries, keys and values are loaded before the first of them is used.
constexpr int kRowBatch = 8;

__device__ float to_float(bf16 value) { return __uint_as_float(std::uint32_t{value.bits} << 16); }
__device__ float sigmoid(float x) { return 1.0F / (1.0F + expf(-x)); }
__device__ float softplus(float x) { return x > 20.0F ? x : log1pf(expf(x)); }

/// Input `channel` of the convolution, `distance` rows before `row`. `num_before` rows in front of
/// it belong to its span, as far as the convolution looks; the state has what came before those.
__device__ float conv_input(const GatedDeltaNetParams& params, std::int64_t row,
                            const layout::LaneRow& entry, int distance, int num_before,
                            std::int64_t channel) {
  if (distance <= num_before) {
    return to_float(params.projected[(row - distance) * params.shape.row_dim() + channel]);
  }
  if (entry.position < static_cast<std::uint32_t>(distance)) {
    return 0.0F;
  }
  const std::int64_t index = params.shape.conv_kernel - 1 - (distance - num_before);
  return params.conv_states[entry.slot * params.shape.conv_state_floats() +
                            index * params.shape.conv_dim() + channel];
}

/// Rows right before `row` that are of the same sequence, at most `most`.
__device__ int rows_before(const layout::LaneRow* rows, std::int64_t row,
                           const layout::LaneRow& entry, int most) {
  int count = 0;
  while (count < most && row - count > 0) {
    const layout::LaneRow& before = rows[row - count - 1];
    if (before.slot != entry.slot || before.position + count + 1 != entry.position) {
      break;
    }
    ++count;
  }
  return count;
}

/// silu of the convolution; queries and keys at unit length, queries over sqrt(k_head_dim) as well.
__global__ void __launch_bounds__(kThreads) convolution_kernel(GatedDeltaNetParams params) {
  const GatedDeltaNetShape& shape = params.shape;
  const std::int64_t row = blockIdx.x;
  const auto head = static_cast<std::int64_t>(blockIdx.y) * kWarps + threadIdx.x / kWarpSize;
  const std::int64_t num_qk = 2 * shape.num_k_heads;
  if (row >= params.control->num_rows || params.abort->aborted != 0 ||
      head >= num_qk + shape.num_v_heads) {
    return;
  }
  const bool is_value = head >= num_qk;
  const int head_dim = static_cast<int>(is_value ? shape.v_head_dim : shape.k_head_dim);
  const std::int64_t first =
      is_value ? num_qk * shape.k_head_dim + (head - num_qk) * head_dim : head * head_dim;
  const layout::LaneRow entry = params.rows[row];
  const int kernel = static_cast<int>(shape.conv_kernel);
  const int num_before = rows_before(params.rows, row, entry, kernel - 1);
  float* out = params.mixed + row * shape.conv_dim() + first;
  float squares = 0.0F;
  for (int i = static_cast<int>(threadIdx.x) % kWarpSize; i < head_dim; i += kWarpSize) {
    const std::int64_t channel = first + i;
    float sum = params.conv_weight[(kernel - 1) * shape.conv_dim() + channel] *
                conv_input(params, row, entry, 0, num_before, channel);
    for (int tap = 0; tap + 1 < kernel; ++tap) {
      sum += params.conv_weight[tap * shape.conv_dim() + channel] *
             conv_input(params, row, entry, kernel - 1 - tap, num_before, channel);
    }
    const float value = sum * sigmoid(sum);
    squares += value * value;
    out[i] = value;
  }
  if (is_value) {
    return;
  }
  squares = reduce_warp(squares, Sum{});
  const float scale = head < shape.num_k_heads ? rsqrtf(static_cast<float>(head_dim)) : 1.0F;
  const float inverse = scale / sqrtf(squares + kNormEps);
  for (int i = static_cast<int>(threadIdx.x) % kWarpSize; i < head_dim; i += kWarpSize) {
    out[i] *= inverse;
  }
}

/// The convolution's last inputs, after the span; each thread has channels of its own.
__device__ void update_conv_state(const GatedDeltaNetParams& params, const layout::LaneSpan& span) {
  const GatedDeltaNetShape& shape = params.shape;
  const std::int64_t dim = shape.conv_dim();
  const int num_kept = static_cast<int>(shape.conv_kernel) - 1;
  const auto num_rows = static_cast<std::int64_t>(span.num_rows);
  float* state = params.conv_states + span.slot * shape.conv_state_floats();
  for (std::int64_t channel = blockIdx.y * kThreads + threadIdx.x; channel < dim;
       channel += gridDim.y * kThreads) {
    for (int kept = 0; kept < num_kept; ++kept) {
      const std::int64_t row = num_rows - num_kept + kept;  // of the span
      float value = 0.0F;
      if (row >= 0) {
        value = to_float(params.projected[(span.first_row + row) * shape.row_dim() + channel]);
      } else if (span.start_position != 0) {
        value = state[(kept + num_rows) * dim + channel];
      }
      state[kept * dim + channel] = value;
    }
  }
}

/// What a block reads of kRowBatch rows.
template <int kKeyDim>
struct RowBatch {
  /// A quarter of the keys and some room, so that the four are in different banks.
  static constexpr int kPartStride = kKeyDim / kParts + 4;
  float4 q[kRowBatch][kParts * kPartStride / 4];
  float4 k[kRowBatch][kParts * kPartStride / 4];
  float v[kRowBatch][kColumns];
  float decay[kRowBatch];
  float beta[kRowBatch];
};

template <int kKeyDim>
__device__ void load_batch(const GatedDeltaNetParams& params, std::int64_t first_row, int num_rows,
                           std::int64_t head, std::int64_t first_column, RowBatch<kKeyDim>& batch) {
  constexpr int kPerPart = kKeyDim / kParts;
  const GatedDeltaNetShape& shape = params.shape;
  const std::int64_t k_head = head / (shape.num_v_heads / shape.num_k_heads);
  const std::int64_t keys = shape.num_k_heads * shape.k_head_dim;
  for (int r = 0; r < num_rows; ++r) {
    const float* mixed = params.mixed + (first_row + r) * shape.conv_dim();
    const float* q = mixed + k_head * kKeyDim;
    for (int i = static_cast<int>(threadIdx.x); i < kKeyDim; i += kThreads) {
      const int at = i / kPerPart * RowBatch<kKeyDim>::kPartStride + i % kPerPart;
      reinterpret_cast<float*>(batch.q[r])[at] = q[i];
      reinterpret_cast<float*>(batch.k[r])[at] = q[keys + i];
    }
    if (threadIdx.x < kColumns) {
      batch.v[r][threadIdx.x] =
          mixed[2 * keys + head * shape.v_head_dim + first_column + threadIdx.x];
    }
  }
  if (static_cast<int>(threadIdx.x) < num_rows) {
    const bf16* tail = params.projected + (first_row + threadIdx.x) * shape.row_dim() +
                       shape.conv_dim() + shape.value_dim() + head;
    const float b = to_float(tail[0]);
    const float a = to_float(tail[shape.num_v_heads]);
    batch.beta[threadIdx.x] = sigmoid(b);
    batch.decay[threadIdx.x] = expf(-expf(params.a_log[head]) * softplus(a + params.dt_bias[head]));
  }
}

/// Sum over the threads of a column.
__device__ float sum_parts(float value) {
  value += __shfl_xor_sync(kAllLanes, value, 1);
  return value + __shfl_xor_sync(kAllLanes, value, 2);
}

/// A block a span, head and 32 columns; the blocks behind those columns keep the convolution's
/// state.
template <int kKeyDim>
__global__ void __launch_bounds__(kThreads) delta_rule_kernel(GatedDeltaNetParams params) {
  constexpr int kPerPart = kKeyDim / kParts;
  __shared__ RowBatch<kKeyDim> batch;
  const GatedDeltaNetShape& shape = params.shape;
  if (blockIdx.x >= params.control->num_spans || params.abort->aborted != 0) {
    return;
  }
  const layout::LaneSpan span = params.spans[blockIdx.x];
  if (blockIdx.z == gridDim.z - 1) {
    update_conv_state(params, span);
    return;
  }
  const std::int64_t head = blockIdx.y;
  const std::int64_t first_column = static_cast<std::int64_t>(blockIdx.z) * kColumns;
  const int part = static_cast<int>(threadIdx.x) % kParts;
  const int column = static_cast<int>(threadIdx.x) / kParts;
  float* const matrix = params.recurrent_states + span.slot * recurrent_state_floats(shape) +
                        head * shape.k_head_dim * shape.v_head_dim +
                        (first_column + column) * kParts + part;
  const std::int64_t stride = shape.v_head_dim * kParts;
  float state[kPerPart];
#pragma unroll
  for (int i = 0; i < kPerPart; ++i) {
    state[i] = span.start_position == 0 ? 0.0F : matrix[i * stride];
  }
  for (std::uint32_t first = 0; first < span.num_rows; first += kRowBatch) {
    const int num_rows = static_cast<int>(min(span.num_rows - first, std::uint32_t{kRowBatch}));
    __syncthreads();  // the batch before has been used
    load_batch<kKeyDim>(params, span.first_row + first, num_rows, head, first_column, batch);
    __syncthreads();
    for (int r = 0; r < num_rows; ++r) {
      const float4* k = batch.k[r] + part * RowBatch<kKeyDim>::kPartStride / 4;
      const float4* q = batch.q[r] + part * RowBatch<kKeyDim>::kPartStride / 4;
      const float decay = batch.decay[r];
      float predicted = 0.0F;
#pragma unroll
      for (int i = 0; i < kPerPart; i += 4) {
        const float4 key = k[i / 4];
        state[i] *= decay;
        state[i + 1] *= decay;
        state[i + 2] *= decay;
        state[i + 3] *= decay;
        predicted +=
            key.x * state[i] + key.y * state[i + 1] + key.z * state[i + 2] + key.w * state[i + 3];
      }
      const float delta = batch.beta[r] * (batch.v[r][column] - sum_parts(predicted));
      float out = 0.0F;
#pragma unroll
      for (int i = 0; i < kPerPart; i += 4) {
        const float4 key = k[i / 4];
        const float4 query = q[i / 4];
        state[i] += key.x * delta;
        state[i + 1] += key.y * delta;
        state[i + 2] += key.z * delta;
        state[i + 3] += key.w * delta;
        out += query.x * state[i] + query.y * state[i + 1] + query.z * state[i + 2] +
               query.w * state[i + 3];
      }
      out = sum_parts(out);
      if (part == 0) {
        params.heads[(span.first_row + first + r) * shape.value_dim() + head * shape.v_head_dim +
                     first_column + column] = out;
      }
    }
  }
#pragma unroll
  for (int i = 0; i < kPerPart; ++i) {
    matrix[i * stride] = state[i];
  }
}

__global__ void __launch_bounds__(kThreads) gated_norm_kernel(GatedDeltaNetParams params) {
  const GatedDeltaNetShape& shape = params.shape;
  const std::int64_t row = blockIdx.x;
  const auto head = static_cast<std::int64_t>(blockIdx.y) * kWarps + threadIdx.x / kWarpSize;
  if (row >= params.control->num_rows || params.abort->aborted != 0 || head >= shape.num_v_heads) {
    return;
  }
  const int head_dim = static_cast<int>(shape.v_head_dim);
  const std::int64_t first = row * shape.value_dim() + head * head_dim;
  const float* x = params.heads + first;
  const bf16* z = params.projected + row * shape.row_dim() + shape.conv_dim() + head * head_dim;
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  float squares = 0.0F;
  for (int i = lane; i < head_dim; i += kWarpSize) {
    squares += x[i] * x[i];
  }
  squares = reduce_warp(squares, Sum{});
  const float inverse = 1.0F / sqrtf(squares / static_cast<float>(head_dim) + params.eps);
  for (int i = lane; i < head_dim; i += kWarpSize) {
    const float gate = to_float(z[i]);
    const __nv_bfloat16 value =
        __float2bfloat16_rn(x[i] * inverse * params.norm_weight[i] * gate * sigmoid(gate));
    params.out[first + i].bits = __bfloat16_as_ushort(value);
  }
}

unsigned blocks_of(std::int64_t count, std::int64_t per_block) {
  return static_cast<unsigned>((count + per_block - 1) / per_block);
}

}  // namespace

Status launch_gated_delta_net(const GatedDeltaNetParams& params, device::CudaStream stream) {
  const GatedDeltaNetShape& shape = params.shape;
  if (!is_supported(shape) || params.max_rows < 0 || params.max_spans < 0) {
    return {StatusCode::kInvalidArgument,
            "gated delta net: no kernel for " + std::to_string(shape.num_k_heads) +
                " key heads of " + std::to_string(shape.k_head_dim) + ", " +
                std::to_string(shape.num_v_heads) + " value heads of " +
                std::to_string(shape.v_head_dim) + " and a convolution of " +
                std::to_string(shape.conv_kernel)};
  }
  const auto num_rows = static_cast<unsigned>(params.max_rows);
  const std::int64_t num_heads = 2 * shape.num_k_heads + shape.num_v_heads;
  auto status =
      launch(convolution_kernel,
             {.grid = dim3(num_rows, blocks_of(num_heads, kWarps)), .block = dim3(kThreads)},
             stream, "gated_delta_net_convolution", params);
  const auto kernel = shape.k_head_dim == 64    ? delta_rule_kernel<64>
                      : shape.k_head_dim == 128 ? delta_rule_kernel<128>
                                                : delta_rule_kernel<256>;
  if (status) {
    status = launch(kernel,
                    {.grid = dim3(static_cast<unsigned>(params.max_spans),
                                  static_cast<unsigned>(shape.num_v_heads),
                                  blocks_of(shape.v_head_dim, kColumns) + 1),
                     .block = dim3(kThreads)},
                    stream, "gated_delta_net", params);
  }
  if (status) {
    status = launch(
        gated_norm_kernel,
        {.grid = dim3(num_rows, blocks_of(shape.num_v_heads, kWarps)), .block = dim3(kThreads)},
        stream, "gated_delta_net_norm", params);
  }
  return status;
}

}  // namespace fastfd::kernels::cuda
