#include <algorithm>

#include "kernels/attention/work.cuh"
#include "kernels/cuda/launch.cuh"

namespace fastfd::kernels::cuda {
namespace {

constexpr int kThreads = 512;
constexpr int kWarps = kThreads / kWarpSize;

constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

/// Sum over the threads before this one, and over all of them in `total`.
__device__ std::uint32_t exclusive_sum(std::uint32_t value, std::uint32_t* shared,
                                       std::uint32_t& total) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const int warp = static_cast<int>(threadIdx.x) / kWarpSize;
  std::uint32_t sum = value;
#pragma unroll
  for (int offset = 1; offset < kWarpSize; offset *= 2) {
    const std::uint32_t other = __shfl_up_sync(kAllLanes, sum, offset);
    sum += lane >= offset ? other : 0;
  }
  if (lane == kWarpSize - 1) {
    shared[warp] = sum;
  }
  __syncthreads();
  std::uint32_t before = 0;
  total = 0;
  for (int i = 0; i < kWarps; ++i) {
    before += i < warp ? shared[i] : 0;
    total += shared[i];
  }
  __syncthreads();
  return before + sum - value;
}

/// Where a span's work goes in the lists.
struct SpanWork {
  std::uint32_t num_splits;  ///< 0: cut over queries
  std::uint32_t num_query_tiles;
  std::uint32_t first_row_split;
  std::uint32_t first_item;
  std::uint32_t first_merge;
};

/// Lists of work so far.
struct Totals {
  std::uint32_t row_splits = 0;
  std::uint32_t split_items = 0;
  std::uint32_t tile_items = 0;
  std::uint32_t merge_items = 0;
};

/// What the shape and the workspace say.
struct Limits {
  AttentionTiling tiling;
  std::uint32_t group;  ///< query heads of a KV head
  std::uint32_t max_row_splits;
};

__device__ SpanWork place_span(const layout::LaneSpan& span, const Limits& limits, Totals& totals,
                               std::uint32_t* shared) {
  const AttentionTiling& tiling = limits.tiling;
  const std::uint32_t queries = span.num_rows * limits.group;
  const std::uint32_t splits =
      (span.start_position + span.num_rows + tiling.split_tokens - 1) / tiling.split_tokens;
  const std::uint32_t tiles = (queries + tiling.split_queries - 1) / tiling.split_queries;
  const bool wants_splits = queries > 0 && tiles <= tiling.max_split_tiles;
  std::uint32_t sum = 0;
  SpanWork work{};
  work.first_row_split =
      totals.row_splits + exclusive_sum(wants_splits ? span.num_rows * splits : 0, shared, sum);
  totals.row_splits += sum;
  const bool fits =
      wants_splits && work.first_row_split + span.num_rows * splits <= limits.max_row_splits;
  work.num_splits = fits ? splits : 0;
  work.num_query_tiles = fits ? tiles : (queries + tiling.tile_queries - 1) / tiling.tile_queries;
  const std::uint32_t split_item =
      totals.split_items + exclusive_sum(fits ? splits * tiles : 0, shared, sum);
  totals.split_items += sum;
  const std::uint32_t tile_item =
      totals.tile_items + exclusive_sum(fits ? 0 : work.num_query_tiles, shared, sum);
  totals.tile_items += sum;
  work.first_item = fits ? split_item : tile_item;
  work.first_merge =
      totals.merge_items + exclusive_sum(fits && splits > 1 ? span.num_rows : 0, shared, sum);
  totals.merge_items += sum;
  return work;
}

/// The warp lists what one span is cut into.
__device__ void list_work(const AttentionWork& work, const layout::LaneSpan& span,
                          std::uint32_t index, const SpanWork& placed) {
  const std::uint32_t lane = threadIdx.x % kWarpSize;
  if (placed.num_splits == 0) {
    // The last queries see the most tokens: first, so that the launch does not end with them.
    for (std::uint32_t i = lane; i < placed.num_query_tiles; i += kWarpSize) {
      work.tile_items[placed.first_item + i] = {index, placed.num_query_tiles - 1 - i};
    }
    return;
  }
  for (std::uint32_t i = lane; i < placed.num_splits * placed.num_query_tiles; i += kWarpSize) {
    work.split_items[placed.first_item + i] = {index, i / placed.num_query_tiles,
                                               i % placed.num_query_tiles, placed.first_row_split};
  }
  for (std::uint32_t i = lane; placed.num_splits > 1 && i < span.num_rows; i += kWarpSize) {
    work.merge_items[placed.first_merge + i] = {span.first_row + i, placed.num_splits,
                                                placed.first_row_split + i, span.num_rows};
  }
}

__global__ void __launch_bounds__(kThreads)
    attention_schedule_kernel(AttentionWork work, const layout::LaneControl* control,
                              const layout::LaneSpan* spans, Limits limits) {
  __shared__ std::uint32_t shared[kWarps];
  __shared__ SpanWork placed[kThreads];
  const std::uint32_t num_spans = control->num_spans;
  Totals totals;
  for (std::uint32_t first = 0; first < num_spans; first += kThreads) {
    const std::uint32_t index = first + threadIdx.x;
    const layout::LaneSpan span = index < num_spans ? spans[index] : layout::LaneSpan{};
    placed[threadIdx.x] = place_span(span, limits, totals, shared);
    __syncthreads();
    const std::uint32_t num = min(num_spans - first, static_cast<std::uint32_t>(kThreads));
    for (std::uint32_t i = threadIdx.x / kWarpSize; i < num; i += kWarps) {
      list_work(work, spans[first + i], first + i, placed[i]);
    }
    __syncthreads();
  }
  if (threadIdx.x == 0) {
    *work.counters = {totals.split_items, totals.tile_items, totals.merge_items, 0, 0};
  }
}

/// Hands out the parts of the workspace one after another.
class Allocator {
 public:
  explicit Allocator(std::byte* data) : data_(data) {}

  template <typename T>
  T* take(std::int64_t count) {
    T* part = data_ == nullptr ? nullptr : reinterpret_cast<T*>(data_ + num_bytes_);
    const std::size_t bytes = static_cast<std::size_t>(count) * sizeof(T);
    num_bytes_ += (bytes + 255) / 256 * 256;
    return part;
  }
  std::size_t num_bytes() const { return num_bytes_; }

 private:
  std::byte* data_;
  std::size_t num_bytes_ = 0;
};

}  // namespace

AttentionWorkspace AttentionWorkspace::of(const AttentionBucket& bucket,
                                          std::int64_t row_split_limit) {
  constexpr std::int64_t kMaxLatentPartialBytes = std::int64_t{256} << 20;
  const std::int64_t wanted =
      bucket.max_rows * ceil_div(bucket.max_context, AttentionTiling::of(bucket).split_tokens);
  if (bucket.is_latent) {
    const auto row_bytes =
        bucket.num_q_heads * (bucket.head_dim + 2) * static_cast<std::int64_t>(sizeof(float));
    row_split_limit = std::min(row_split_limit, kMaxLatentPartialBytes / row_bytes);
  }
  return {.bucket = bucket, .max_row_splits = std::min(wanted, row_split_limit)};
}

std::size_t AttentionWorkspace::num_bytes() const { return AttentionWork::of(*this).num_bytes; }

AttentionWork AttentionWork::of(const AttentionWorkspace& workspace) {
  const AttentionBucket& bucket = workspace.bucket;
  const std::int64_t group = bucket.num_q_heads / bucket.num_kv_heads;
  AttentionWork work{};
  const AttentionTiling tiling = AttentionTiling::of(bucket);
  work.max_split_items = workspace.max_row_splits * ceil_div(group, tiling.split_queries);
  work.max_tile_items = ceil_div(bucket.max_rows * group, tiling.tile_queries) + bucket.max_spans;
  work.max_merge_items = std::min(bucket.max_rows, workspace.max_row_splits);
  Allocator allocator(workspace.data);
  work.counters = allocator.take<AttentionCounters>(1);
  work.split_items = allocator.take<SplitItem>(work.max_split_items);
  work.tile_items = allocator.take<TileItem>(work.max_tile_items);
  work.merge_items = allocator.take<MergeItem>(work.max_merge_items);
  const std::int64_t partial_rows = workspace.max_row_splits * bucket.num_q_heads;
  work.states = allocator.take<SoftmaxState>(partial_rows);
  work.sums = allocator.take<float>(partial_rows * bucket.head_dim);
  work.block_sums = allocator.take<float>(
      bucket.is_latent ? kMaxLatentBlocks * kLatentTileQueries * bucket.head_dim : 0);
  work.num_bytes = allocator.num_bytes();
  return work;
}

std::string attention_shape_error(const AttentionBucket& bucket) {
  if (bucket.num_kv_heads < 1 || bucket.num_q_heads < bucket.num_kv_heads ||
      bucket.num_q_heads % bucket.num_kv_heads != 0) {
    return "paged attention: " + std::to_string(bucket.num_q_heads) +
           " query heads are no multiple of " + std::to_string(bucket.num_kv_heads) + " KV heads";
  }
  if (!bucket.is_latent && bucket.head_dim != 64 && bucket.head_dim != 128 &&
      bucket.head_dim != 256) {
    return "paged attention: no kernel for heads of " + std::to_string(bucket.head_dim);
  }
  if (bucket.max_rows < 0 || bucket.max_spans < 0 || bucket.max_context < 0) {
    return "paged attention: a negative bucket";
  }
  return {};
}

Status launch_attention_schedule(const AttentionScheduleParams& params, device::CudaStream stream) {
  const AttentionBucket& bucket = params.workspace.bucket;
  if (std::string error = attention_shape_error(bucket); !error.empty()) {
    return {StatusCode::kInvalidArgument, std::move(error)};
  }
  const Limits limits{AttentionTiling::of(bucket),
                      static_cast<std::uint32_t>(bucket.num_q_heads / bucket.num_kv_heads),
                      static_cast<std::uint32_t>(params.workspace.max_row_splits)};
  return launch(attention_schedule_kernel, {.grid = dim3(1), .block = dim3(kThreads)}, stream,
                "attention_schedule", AttentionWork::of(params.workspace), params.control,
                params.spans, limits);
}

}  // namespace fastfd::kernels::cuda
