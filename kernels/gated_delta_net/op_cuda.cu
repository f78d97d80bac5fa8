// Three kernels a layer. Convolution: a warp a row and head, with the inputs before a piece from
// the state. Delta rule: columns of a head's matrix don't see each other, so a block has 32 of
// them in registers and walks through its span's rows. Gated norm: a warp a row and head.

#include <cuda_bf16.h>

#include <string>

#include "kernels/cuda/hopper.cuh"
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
/// Rows whose queries, keys and values are on their way while as many others are used.
constexpr int kRowBatch = 8;
constexpr int kBatches = 2;

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
  float4 v[kRowBatch][kColumns / 4];
  float decay[kRowBatch];
  float beta[kRowBatch];
};

/// A block's head and columns, and where it reads its rows.
template <int kKeyDim>
class BatchReader {
 public:
  __device__ BatchReader(const GatedDeltaNetParams& params, std::int64_t head,
                         std::int64_t first_column)
      : params_(params),
        q_(head / (params.shape.num_v_heads / params.shape.num_k_heads) * kKeyDim),
        k_(q_ + params.shape.num_k_heads * kKeyDim),
        v_(2 * params.shape.num_k_heads * kKeyDim + head * params.shape.v_head_dim + first_column),
        tail_(params.shape.conv_dim() + params.shape.value_dim() + head),
        rate_(expf(params.a_log[head])),
        dt_bias_(params.dt_bias[head]) {}

  /// Starts the copies; the gates' projections wait in registers for `finish`.
  __device__ void start(std::int64_t first_row, int num_rows, RowBatch<kKeyDim>& batch) {
    constexpr int kVectors = kKeyDim / 4;
    constexpr int kPartVectors = kVectors / kParts;
    constexpr int kPartStride = RowBatch<kKeyDim>::kPartStride / 4;
    constexpr int kRowVectors = 2 * kVectors + kColumns / 4;
    for (int i = static_cast<int>(threadIdx.x); i < num_rows * kRowVectors; i += kThreads) {
      const int row = i / kRowVectors;
      const int vector = i % kRowVectors;
      const float* mixed = params_.mixed + (first_row + row) * params_.shape.conv_dim();
      if (vector >= 2 * kVectors) {
        copy(&batch.v[row][vector - 2 * kVectors], mixed + v_ + (vector - 2 * kVectors) * 4);
        continue;
      }
      const int at = vector % kVectors;
      float4* to = vector < kVectors ? batch.q[row] : batch.k[row];
      copy(to + at / kPartVectors * kPartStride + at % kPartVectors,
           mixed + (vector < kVectors ? q_ : k_) + at * 4);
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
    if (static_cast<int>(threadIdx.x) < num_rows) {
      const bf16* tail =
          params_.projected + (first_row + threadIdx.x) * params_.shape.row_dim() + tail_;
      b_ = tail[0];
      a_ = tail[params_.shape.num_v_heads];
    }
  }

  /// What `start` has started last is there for this thread; the others' after a barrier.
  __device__ void finish(int num_rows, RowBatch<kKeyDim>& batch) {
    if (static_cast<int>(threadIdx.x) < num_rows) {
      batch.beta[threadIdx.x] = sigmoid(to_float(b_));
      batch.decay[threadIdx.x] = expf(-rate_ * softplus(to_float(a_) + dt_bias_));
    }
    asm volatile("cp.async.wait_all;" ::: "memory");
  }

 private:
  static __device__ void copy(float4* to, const float* from) {
    copy_16_bytes(shared_address(to), from, true);
  }

  const GatedDeltaNetParams& params_;
  // Offsets in a row of `mixed`, and in one of `projected`.
  std::int64_t q_, k_, v_, tail_;
  float rate_, dt_bias_;
  bf16 b_, a_;
};

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
  __shared__ RowBatch<kKeyDim> batches[kBatches];
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
  BatchReader<kKeyDim> reader(params, head, first_column);
  const auto rows_from = [&](std::uint32_t first) {
    return static_cast<int>(min(span.num_rows - first, std::uint32_t{kRowBatch}));
  };
  reader.start(span.first_row, rows_from(0), batches[0]);
  float state[kPerPart];
#pragma unroll
  for (int i = 0; i < kPerPart; ++i) {
    state[i] = span.start_position == 0 ? 0.0F : matrix[i * stride];
  }
  for (std::uint32_t first = 0; first < span.num_rows; first += kRowBatch) {
    const int num_rows = rows_from(first);
    RowBatch<kKeyDim>& batch = batches[first / kRowBatch % kBatches];
    reader.finish(num_rows, batch);
    __syncthreads();  // all of this batch is there, and the one before has been used
    const std::uint32_t next = first + kRowBatch;
    if (next < span.num_rows) {
      reader.start(span.first_row + next, rows_from(next), batches[next / kRowBatch % kBatches]);
    }
    for (int r = 0; r < num_rows; ++r) {
      const float4* k = batch.k[r] + part * RowBatch<kKeyDim>::kPartStride / 4;
      const float4* q = batch.q[r] + part * RowBatch<kKeyDim>::kPartStride / 4;
      const auto* v = reinterpret_cast<const float*>(batch.v[r]);
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
      const float delta = batch.beta[r] * (v[column] - sum_parts(predicted));
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
