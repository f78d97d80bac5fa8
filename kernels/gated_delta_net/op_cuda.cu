// Three kernels a layer. Convolution: a warp a head and some rows, with the inputs before a piece
// from the state. Delta rule: columns of a head's matrix don't see each other, so a block has 32 of
// them in registers and walks through its span's rows. Gated norm: a warp a row and head.

#include <cuda_bf16.h>

#include <algorithm>
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
constexpr unsigned kFewRows = 256;
constexpr int kRowsPerWarp = 16;
// Shapes with a kernel of their own, which takes half the registers.
constexpr int kUsualTaps = 4;
constexpr int kUsualHeadDim = 128;

/// Threads that share columns: neighbours, each with an eighth of the keys of two columns, so that
/// what they read of a row serves twice.
constexpr int kParts = 8;
constexpr int kThreadColumns = 2;
constexpr int kColumns = kThreads / kParts * kThreadColumns;
static_assert(kColumns == kDeltaColumns);
constexpr int kWarpColumns = kColumns / kWarps;
/// From a thread's first column to its second.
constexpr int kColumnStep = kWarpColumns / kThreadColumns;
/// Of the states' layout: parts of the keys whose elements lie together.
constexpr int kQuarters = 4;
/// Rows whose queries, keys and values are on their way while as many others are used.
constexpr int kRowBatch = 8;
constexpr int kBatches = 2;

__device__ float to_float(bf16 value) { return __uint_as_float(std::uint32_t{value.bits} << 16); }
__device__ float sigmoid(float x) { return 1.0F / (1.0F + expf(-x)); }
__device__ float softplus(float x) { return x > 20.0F ? x : log1pf(expf(x)); }

/// Input `channel` of the convolution, `distance` rows (one at least) before `row`. `num_before`
/// rows in front of it belong to its span, as far as the convolution looks; the state has what came
/// before those.
__device__ float input_before(const GatedDeltaNetParams& params, std::int64_t row,
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

/// Rows right before `row` that are of the same sequence, at most `most`, which is below kTaps.
template <int kTaps>
__device__ int rows_before(const layout::LaneRow* rows, std::int64_t row,
                           const layout::LaneRow& entry, int most) {
  int count = 0;
#pragma unroll
  for (int distance = 1; distance < kTaps; ++distance) {  // all loads at once
    const layout::LaneRow before = rows[max(row - distance, std::int64_t{0})];
    const bool is_same = distance <= most && distance <= row && before.slot == entry.slot &&
                         before.position + static_cast<std::uint32_t>(distance) == entry.position;
    count += is_same && count + 1 == distance ? 1 : 0;
  }
  return count;
}

/// A lane's channels of one head: their weights and their inputs of the rows before, both by their
/// distance from the row.
template <int kPerLane, int kTaps>
struct ConvWindow {
  float weights[kPerLane][kTaps];
  float before[kPerLane][kTaps];  ///< [..][0] is not used

  __device__ void load_weights(const GatedDeltaNetParams& params, std::int64_t first,
                               int per_lane) {
    const int num_taps = static_cast<int>(params.shape.conv_kernel);
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
#pragma unroll
      for (int distance = 0; distance < kTaps; ++distance) {
        if (i < per_lane && distance < num_taps) {
          weights[i][distance] =
              params.conv_weight[(num_taps - 1 - distance) * params.shape.conv_dim() + first +
                                 i * kWarpSize];
        }
      }
    }
  }

  __device__ void load_before(const GatedDeltaNetParams& params, std::int64_t row,
                              const layout::LaneRow& entry, std::int64_t first, int per_lane) {
    const int num_taps = static_cast<int>(params.shape.conv_kernel);
    const int num_before = rows_before<kTaps>(params.rows, row, entry, num_taps - 1);
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
#pragma unroll
      for (int distance = 1; distance < kTaps; ++distance) {
        if (i < per_lane && distance < num_taps) {
          before[i][distance] =
              input_before(params, row, entry, distance, num_before, first + i * kWarpSize);
        }
      }
    }
  }

  /// Of channel i, whose input is x, which then is one of the rows before.
  __device__ float convolve(int i, float x, int num_taps) {
    float sum = weights[i][0] * x;
#pragma unroll
    for (int distance = kTaps - 1; distance > 0; --distance) {
      if (distance < num_taps) {
        sum += weights[i][distance] * before[i][distance];
      }
      before[i][distance] = distance > 1 ? before[i][distance - 1] : x;
    }
    return sum;
  }
};

/// silu of the convolution; queries and keys at unit length, queries over sqrt(k_head_dim) as well.
/// A warp a head and `rows_per_warp` rows: a row's inputs are loaded once and wait in registers for
/// the rows behind it.
template <int kPerLane, int kTaps>
__global__ void __launch_bounds__(kThreads)
    convolution_kernel(GatedDeltaNetParams params, int rows_per_warp) {
  const GatedDeltaNetShape& shape = params.shape;
  const auto head = static_cast<std::int64_t>(blockIdx.y) * kWarps + threadIdx.x / kWarpSize;
  const std::int64_t num_qk = 2 * shape.num_k_heads;
  const std::int64_t first_row = static_cast<std::int64_t>(blockIdx.x) * rows_per_warp;
  const std::int64_t last_row =
      min(first_row + rows_per_warp, static_cast<std::int64_t>(params.control->num_rows));
  if (first_row >= last_row || params.abort->aborted != 0 || head >= num_qk + shape.num_v_heads) {
    return;
  }
  const bool is_value = head >= num_qk;
  const int head_dim = static_cast<int>(is_value ? shape.v_head_dim : shape.k_head_dim);
  const int per_lane = head_dim / kWarpSize;
  const int num_taps = static_cast<int>(shape.conv_kernel);
  const std::int64_t first =
      (is_value ? num_qk * shape.k_head_dim + (head - num_qk) * head_dim : head * head_dim) +
      threadIdx.x % kWarpSize;
  const float unit = head < shape.num_k_heads ? rsqrtf(static_cast<float>(head_dim)) : 1.0F;

  ConvWindow<kPerLane, kTaps> window;
  window.load_weights(params, first, per_lane);
  bf16 inputs[kPerLane];
  const auto load_inputs = [&](std::int64_t row) {
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      if (i < per_lane) {
        inputs[i] = params.projected[row * shape.row_dim() + first + i * kWarpSize];
      }
    }
  };
  load_inputs(first_row);
  layout::LaneRow entry = params.rows[first_row];
  window.load_before(params, first_row, entry, first, per_lane);
  for (std::int64_t row = first_row; row < last_row; ++row) {
    float values[kPerLane];
    float squares = 0.0F;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      if (i < per_lane) {
        const float sum = window.convolve(i, to_float(inputs[i]), num_taps);
        values[i] = sum * sigmoid(sum);
        squares += values[i] * values[i];
      }
    }
    if (row + 1 < last_row) {
      load_inputs(row + 1);
      const layout::LaneRow next = params.rows[row + 1];
      if (next.slot != entry.slot || next.position != entry.position + 1) {
        window.load_before(params, row + 1, next, first, per_lane);
      }
      entry = next;
    }
    const float scale = is_value ? 1.0F : unit / sqrtf(reduce_warp(squares, Sum{}) + kNormEps);
    float* out = params.mixed + row * shape.conv_dim() + first;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      if (i < per_lane) {
        out[i * kWarpSize] = values[i] * scale;
      }
    }
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
  /// A part of the keys and some room, so that all parts are in different banks.
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
      copy(to + place(at), mixed + (vector < kVectors ? q_ : k_) + at * 4);
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
  /// Part p has quarter p % 4 of the keys, its first half if p < 4, else its second.
  static __device__ int place(int vector) {
    constexpr int kQuarterVectors = kKeyDim / 4 / kQuarters;
    constexpr int kPartVectors = kKeyDim / 4 / kParts;
    const int half = vector % kQuarterVectors / kPartVectors;
    const int part = vector / kQuarterVectors + half * kQuarters;
    return part * RowBatch<kKeyDim>::kPartStride / 4 + vector % kPartVectors;
  }
  static __device__ void copy(float4* to, const float* from) {
    copy_16_bytes(shared_address(to), from, true);
  }

  const GatedDeltaNetParams& params_;
  // Offsets in a row of `mixed`, and in one of `projected`.
  std::int64_t q_, k_, v_, tail_;
  float rate_, dt_bias_;
  bf16 b_, a_;
};

/// Sums of two columns over their threads: the first's for even parts, the second's for odd ones.
__device__ float sum_parts(float first, float second, bool is_odd) {
  float sum = is_odd ? second : first;
  sum += __shfl_xor_sync(kAllLanes, is_odd ? first : second, 1);
  sum += __shfl_xor_sync(kAllLanes, sum, 2);
  return sum + __shfl_xor_sync(kAllLanes, sum, 4);
}

__device__ float dot(const float4& a, const float* b) {
  return a.x * b[0] + a.y * b[1] + a.z * b[2] + a.w * b[3];
}

__device__ void scale(float* x, float factor) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    x[i] *= factor;
  }
}

__device__ void add_scaled(float* x, const float4& a, float factor) {
  x[0] += a.x * factor;
  x[1] += a.y * factor;
  x[2] += a.z * factor;
  x[3] += a.w * factor;
}

/// A thread's keys of two columns of a head's matrix.
template <int kKeyDim>
struct ColumnPair {
  static constexpr int kKeys = kKeyDim / kParts;
  float state[kThreadColumns][kKeys];

  /// One row: forgets, corrects, and returns the result of the thread's own column (sum_parts).
  /// `k` and `q`: the thread's part of the row's; `v`: of its own column.
  __device__ float step(const float4* k, const float4* q, float v, float decay, float beta,
                        bool is_odd) {
    float predicted[kThreadColumns] = {};
#pragma unroll
    for (int i = 0; i < kKeys; i += 4) {
#pragma unroll
      for (int c = 0; c < kThreadColumns; ++c) {
        scale(state[c] + i, decay);
        predicted[c] += dot(k[i / 4], state[c] + i);
      }
    }
    const float delta = beta * (v - sum_parts(predicted[0], predicted[1], is_odd));
    const float other = __shfl_xor_sync(kAllLanes, delta, 1);
    const float deltas[kThreadColumns] = {is_odd ? other : delta, is_odd ? delta : other};
    float out[kThreadColumns] = {};
#pragma unroll
    for (int i = 0; i < kKeys; i += 4) {
#pragma unroll
      for (int c = 0; c < kThreadColumns; ++c) {
        add_scaled(state[c] + i, k[i / 4], deltas[c]);
        out[c] += dot(q[i / 4], state[c] + i);
      }
    }
    return sum_parts(out[0], out[1], is_odd);
  }
};

/// A block a span, head and 32 columns; the blocks behind those columns keep the convolution's
/// state.
template <int kKeyDim>
__global__ void __launch_bounds__(kThreads) delta_rule_kernel(GatedDeltaNetParams params) {
  constexpr int kKeys = ColumnPair<kKeyDim>::kKeys;
  constexpr int kPartStride = RowBatch<kKeyDim>::kPartStride / 4;
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
  BatchReader<kKeyDim> reader(params, head, first_column);
  const auto rows_from = [&](std::uint32_t first) {
    return static_cast<int>(min(span.num_rows - first, std::uint32_t{kRowBatch}));
  };
  reader.start(span.first_row, rows_from(0), batches[0]);

  const int part = static_cast<int>(threadIdx.x) % kParts;
  const bool is_odd = part % 2 != 0;
  const int column = static_cast<int>(threadIdx.x) / kWarpSize * kWarpColumns +
                     static_cast<int>(threadIdx.x) % kWarpSize / kParts;
  const int own_column = column + (is_odd ? kColumnStep : 0);
  float* const matrix =
      params.recurrent_states + span.slot * recurrent_state_floats(shape) +
      head * shape.k_head_dim * shape.v_head_dim +
      (part / kQuarters * kKeys * shape.v_head_dim + first_column + column) * kQuarters +
      part % kQuarters;
  const std::int64_t stride = shape.v_head_dim * kQuarters;
  ColumnPair<kKeyDim> columns;
#pragma unroll
  for (int i = 0; i < kKeys; ++i) {
#pragma unroll
    for (int c = 0; c < kThreadColumns; ++c) {
      const float* element = matrix + i * stride + c * kColumnStep * kQuarters;
      columns.state[c][i] = span.start_position == 0 ? 0.0F : *element;
    }
  }
  float* out = params.heads + span.first_row * shape.value_dim() + head * shape.v_head_dim +
               first_column + own_column;
  for (std::uint32_t first = 0; first < span.num_rows; first += kRowBatch) {
    const int num_rows = rows_from(first);
    RowBatch<kKeyDim>& batch = batches[first / kRowBatch % kBatches];
    reader.finish(num_rows, batch);
    __syncthreads();  // all of this batch is there, and the one before has been used
    const std::uint32_t next = first + kRowBatch;
    if (next < span.num_rows) {
      reader.start(span.first_row + next, rows_from(next), batches[next / kRowBatch % kBatches]);
    }
    // Unrolled, so that a row's result is summed up while the next row begins.
#pragma unroll 4
    for (int r = 0; r < num_rows; ++r) {
      const auto* v = reinterpret_cast<const float*>(batch.v[r]);
      const float value =
          columns.step(batch.k[r] + part * kPartStride, batch.q[r] + part * kPartStride,
                       v[own_column], batch.decay[r], batch.beta[r], is_odd);
      if (part < kThreadColumns) {
        *out = value;
      }
      out += shape.value_dim();
    }
  }
#pragma unroll
  for (int i = 0; i < kKeys; ++i) {
#pragma unroll
    for (int c = 0; c < kThreadColumns; ++c) {
      matrix[i * stride + c * kColumnStep * kQuarters] = columns.state[c][i];
    }
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
  // Few rows are of as many sequences, and want to be worked on at once.
  const int rows_per_warp = num_rows > kFewRows ? kRowsPerWarp : 1;
  const bool is_usual = shape.conv_kernel <= kUsualTaps &&
                        std::max(shape.k_head_dim, shape.v_head_dim) <= kUsualHeadDim;
  const auto convolution = is_usual ? convolution_kernel<kUsualHeadDim / kWarpSize, kUsualTaps>
                                    : convolution_kernel<kMaxHeadDim / kWarpSize, kMaxConvKernel>;
  if (Status status =
          launch(convolution,
                 {.grid = dim3(blocks_of(num_rows, rows_per_warp), blocks_of(num_heads, kWarps)),
                  .block = dim3(kThreads)},
                 stream, "gated_delta_net_convolution", params, rows_per_warp);
      !status) {
    return status;
  }
  const auto kernel = shape.k_head_dim == 64    ? delta_rule_kernel<64>
                      : shape.k_head_dim == 128 ? delta_rule_kernel<128>
                                                : delta_rule_kernel<256>;
  if (Status status = launch(kernel,
                             {.grid = dim3(static_cast<unsigned>(params.max_spans),
                                           static_cast<unsigned>(shape.num_v_heads),
                                           blocks_of(shape.v_head_dim, kColumns) + 1),
                              .block = dim3(kThreads)},
                             stream, "gated_delta_net", params);
      !status) {
    return status;
  }
  return launch(
      gated_norm_kernel,
      {.grid = dim3(num_rows, blocks_of(shape.num_v_heads, kWarps)), .block = dim3(kThreads)},
      stream, "gated_delta_net_norm", params);
}

}  // namespace fastfd::kernels::cuda
