#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "kernels/attention/op.h"
#include "kernels/attention/paged_spans.h"
#include "kernels/simd/kernel_table.h"
#include "kernels/simd/launch.h"

namespace fastfd::kernels {
namespace {

constexpr const char* kOp = "paged attention";

/// One launch. Work is cut into items: a few consecutive rows of a span with the query heads of one
/// KV head, whose keys and values are then read once for all of them.
class PagedAttention {
 public:
  PagedAttention(const PagedAttentionParams& params, const device::CpuStream& stream)
      : params_(params),
        stream_(stream),
        table_(simd::kernel_table(stream.isa)),
        abort_(params.abort) {
    const KvPool& pool = params.pool;
    group_ = params.num_q_heads / pool.num_kv_heads;
    heads_per_item_ = std::min(group_, simd::kMaxAttentionQueries);
    rows_per_item_ = simd::kMaxAttentionQueries / heads_per_item_;
    items_per_block_ = pool.num_kv_heads * ((group_ + heads_per_item_ - 1) / heads_per_item_);
    row_dim_ = (params.num_q_heads + 2 * pool.num_kv_heads) * pool.head_dim;
  }

  Status run() {
    std::int64_t num_rows = 0;
    std::int64_t num_items = 0;
    double num_scores = 0.0;
    for (const AttentionSpan& span : params_.spans) {
      num_rows += span.num_rows;
      num_items += num_items_of(span);
      const std::int64_t end = span.start_position + span.num_rows;
      const std::int64_t seen = params_.window > 0 ? std::min(params_.window, end) : end;
      num_scores += static_cast<double>(span.num_rows) * static_cast<double>(seen);
    }
    const auto kv_dim = static_cast<double>(params_.pool.num_kv_heads * params_.pool.head_dim);
    simd::split(stream_, num_rows, 1,
                simd::estimated_microseconds(0.0, 12.0 * kv_dim * static_cast<double>(num_rows)),
                [this](std::int64_t begin, std::int64_t end) { write_rows(begin, end); });
    const double flops = 4.0 * num_scores * static_cast<double>(params_.num_q_heads) *
                         static_cast<double>(params_.pool.head_dim);
    simd::split(stream_, num_items, 1, simd::estimated_microseconds(flops, 0.0),
                [this](std::int64_t begin, std::int64_t end) { attend_items(begin, end); });
    return abort_.status(kOp);
  }

 private:
  std::int64_t num_items_of(const AttentionSpan& span) const {
    return (span.num_rows + rows_per_item_ - 1) / rows_per_item_ * items_per_block_;
  }

  /// Stores keys and values of rows [begin, end), counted over all spans.
  void write_rows(std::int64_t begin, std::int64_t end) {
    const auto num_rows = [](const AttentionSpan& span) { return span.num_rows; };
    for_each_item(params_.spans, begin, end, num_rows,
                  [this](const AttentionSpan& span, std::int64_t row) {
                    if (row % kAbortRows == 0 && abort_.requested()) {
                      return false;
                    }
                    write_row(span, row);
                    return true;
                  });
  }

  void write_row(const AttentionSpan& span, std::int64_t row) const {
    const KvPool& pool = params_.pool;
    const std::int64_t position = span.start_position + row;
    const std::int64_t page = span.pages[position / pool.page_size];
    const float* key =
        params_.qkv + (span.first_row + row) * row_dim_ + params_.num_q_heads * pool.head_dim;
    const float* value = key + pool.num_kv_heads * pool.head_dim;
    for (std::int64_t head = 0; head < pool.num_kv_heads; ++head) {
      const std::int64_t element =
          ((page * pool.num_kv_heads + head) * pool.page_size + position % pool.page_size) *
          pool.head_dim;
      store(pool.keys, element, key + head * pool.head_dim);
      store(pool.values, element, value + head * pool.head_dim);
    }
  }

  void store(void* pool, std::int64_t element, const float* row) const {
    if (params_.pool.dtype == DType::kBFloat16) {
      table_.to_bf16(row, static_cast<std::uint16_t*>(pool) + element, params_.pool.head_dim);
    } else {
      std::memcpy(static_cast<float*>(pool) + element, row,
                  static_cast<std::size_t>(params_.pool.head_dim) * sizeof(float));
    }
  }

  void attend_items(std::int64_t begin, std::int64_t end) {
    const auto num_items = [this](const AttentionSpan& span) { return num_items_of(span); };
    for_each_item(
        params_.spans, begin, end, num_items, [this](const AttentionSpan& span, std::int64_t item) {
          if (abort_.requested()) {
            return false;
          }
          attend_item(span, item / items_per_block_ * rows_per_item_, item % items_per_block_);
          return true;
        });
  }

  /// Rows from `first_row` of the span on; `part` counts KV heads and the parts of a head group too
  /// large for one item.
  void attend_item(const AttentionSpan& span, std::int64_t first_row, std::int64_t part) const {
    const KvPool& pool = params_.pool;
    const std::int64_t kv_head = part % pool.num_kv_heads;
    const std::int64_t first_head = part / pool.num_kv_heads * heads_per_item_;
    const std::int64_t num_heads = std::min(heads_per_item_, group_ - first_head);
    const std::int64_t num_rows = std::min(rows_per_item_, span.num_rows - first_row);
    std::array<std::int64_t, simd::kMaxAttentionQueries> limits;
    std::array<const float*, simd::kMaxAttentionQueries> queries;
    std::array<float*, simd::kMaxAttentionQueries> outputs;
    std::array<float, simd::kMaxAttentionQueries> sinks;
    std::size_t num_queries = 0;
    for (std::int64_t row = first_row; row < first_row + num_rows; ++row) {
      for (std::int64_t head = 0; head < num_heads; ++head, ++num_queries) {
        const std::int64_t q_head = kv_head * group_ + first_head + head;
        limits[num_queries] = span.start_position + row + 1;
        sinks[num_queries] = params_.sinks != nullptr ? params_.sinks[q_head] : 0.0F;
        queries[num_queries] =
            params_.qkv + (span.first_row + row) * row_dim_ + q_head * pool.head_dim;
        outputs[num_queries] =
            params_.out + ((span.first_row + row) * params_.num_q_heads + q_head) * pool.head_dim;
      }
    }
    thread_local device::HostBuffer scratch;
    const std::int64_t head_offset = kv_head * pool.page_size * pool.head_dim *
                                     static_cast<std::int64_t>(dtype_bytes(pool.dtype));
    table_.attention(
        {.num_queries = static_cast<std::int64_t>(num_queries),
         .limits = limits.data(),
         .window = params_.window,
         .sinks = params_.sinks != nullptr ? sinks.data() : nullptr,
         .queries = queries.data(),
         .outputs = outputs.data(),
         .keys = static_cast<const std::byte*>(pool.keys) + head_offset,
         .values = static_cast<const std::byte*>(pool.values) + head_offset,
         .pool_is_bf16 = pool.dtype == DType::kBFloat16,
         .pages = span.pages,
         .page_size = pool.page_size,
         .page_stride = pool.num_kv_heads * pool.page_size * pool.head_dim,
         .head_dim = pool.head_dim,
         .value_dim = pool.head_dim,
         .scale = params_.scale,
         .scratch = simd::reserve<float>(scratch, simd::attention_scratch_floats(pool.head_dim))});
  }

  static constexpr std::int64_t kAbortRows = 32;

  const PagedAttentionParams& params_;
  const device::CpuStream& stream_;
  const simd::KernelTable& table_;
  std::int64_t group_ = 0;  ///< query heads of a KV head
  std::int64_t heads_per_item_ = 0;
  std::int64_t rows_per_item_ = 0;
  std::int64_t items_per_block_ = 0;  ///< of the same rows
  std::int64_t row_dim_ = 0;
  AbortPoll abort_;
};

Status check_params(const PagedAttentionParams& params) {
  const KvPool& pool = params.pool;
  if (pool.num_kv_heads < 1 || pool.head_dim < 1 || params.num_q_heads < pool.num_kv_heads ||
      params.num_q_heads % pool.num_kv_heads != 0) {
    return {StatusCode::kInvalidArgument,
            fmt::format("paged attention: {} query heads are no multiple of {} KV heads",
                        params.num_q_heads, pool.num_kv_heads)};
  }
  if (params.window < 0) {
    return {StatusCode::kInvalidArgument,
            fmt::format("paged attention: a window of {} tokens", params.window)};
  }
  return check_paged_spans(
      kOp, params.spans,
      {.dtype = pool.dtype, .num_pages = pool.num_pages, .page_size = pool.page_size});
}

}  // namespace

Status launch_paged_attention(const PagedAttentionParams& params, const device::CpuStream& stream) {
  if (Status status = check_params(params); !status) {
    return status;
  }
  return PagedAttention(params, stream).run();
}

}  // namespace fastfd::kernels
