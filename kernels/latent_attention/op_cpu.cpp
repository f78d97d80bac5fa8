#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "kernels/attention/paged_spans.h"
#include "kernels/latent_attention/op.h"
#include "kernels/simd/kernel_table.h"
#include "kernels/simd/launch.h"

namespace fastfd::kernels {
namespace {

constexpr const char* kOp = "latent attention";

/// One launch. Work is cut into items: heads of one row, or where a row has few of several
/// consecutive rows of a span, whose cached rows are then read once for all of them.
class LatentAttention {
 public:
  LatentAttention(const LatentAttentionParams& params, const device::CpuStream& stream)
      : params_(params),
        stream_(stream),
        table_(simd::kernel_table(stream.isa)),
        abort_(params.abort) {
    heads_per_item_ = std::min(params.num_heads, simd::kMaxAttentionQueries);
    rows_per_item_ = simd::kMaxAttentionQueries / heads_per_item_;
    items_per_block_ = (params.num_heads + heads_per_item_ - 1) / heads_per_item_;
  }

  Status run() {
    const auto row_dim = static_cast<double>(params_.pool.row_dim());
    std::int64_t num_items = 0;
    double num_scores = 0.0;
    for (const AttentionSpan& span : params_.spans) {
      write_rows(span);
      num_items += num_items_of(span);
      num_scores += static_cast<double>(span.num_rows) *
                    static_cast<double>(span.start_position + span.num_rows);
    }
    const double flops = 4.0 * num_scores * static_cast<double>(params_.num_heads) * row_dim;
    simd::split(stream_, num_items, 1, simd::estimated_microseconds(flops, 0.0),
                [this](std::int64_t begin, std::int64_t end) { attend_items(begin, end); });
    return abort_.status(kOp);
  }

 private:
  std::int64_t num_items_of(const AttentionSpan& span) const {
    return (span.num_rows + rows_per_item_ - 1) / rows_per_item_ * items_per_block_;
  }

  /// A few KiB a row: not worth the workers.
  void write_rows(const AttentionSpan& span) {
    constexpr std::int64_t kAbortRows = 32;
    const LatentPool& pool = params_.pool;
    const std::int64_t row_dim = pool.row_dim();
    for (std::int64_t row = 0; row < span.num_rows; ++row) {
      if (row % kAbortRows == 0 && abort_.requested()) {
        return;
      }
      const std::int64_t position = span.start_position + row;
      const std::int64_t page = span.pages[position / pool.page_size];
      const std::int64_t element = (page * pool.page_size + position % pool.page_size) * row_dim;
      const float* latent = params_.latents + (span.first_row + row) * row_dim;
      if (pool.dtype == DType::kBFloat16) {
        table_.to_bf16(latent, static_cast<std::uint16_t*>(pool.rows) + element, row_dim);
      } else {
        std::memcpy(static_cast<float*>(pool.rows) + element, latent,
                    static_cast<std::size_t>(row_dim) * sizeof(float));
      }
    }
  }

  void attend_items(std::int64_t begin, std::int64_t end) {
    const auto num_items = [this](const AttentionSpan& span) { return num_items_of(span); };
    for_each_item(params_.spans, begin, end, num_items,
                  [this](const AttentionSpan& span, std::int64_t item) {
                    if (abort_.requested()) {
                      return false;
                    }
                    attend_item(span, item / items_per_block_ * rows_per_item_,
                                item % items_per_block_ * heads_per_item_);
                    return true;
                  });
  }

  void attend_item(const AttentionSpan& span, std::int64_t first_row,
                   std::int64_t first_head) const {
    const LatentPool& pool = params_.pool;
    const std::int64_t last_head = std::min(first_head + heads_per_item_, params_.num_heads);
    const std::int64_t last_row = std::min(first_row + rows_per_item_, span.num_rows);
    std::array<std::int64_t, simd::kMaxAttentionQueries> limits;
    std::array<const float*, simd::kMaxAttentionQueries> queries;
    std::array<float*, simd::kMaxAttentionQueries> outputs;
    std::size_t num_queries = 0;
    for (std::int64_t row = first_row; row < last_row; ++row) {
      for (std::int64_t head = first_head; head < last_head; ++head, ++num_queries) {
        const std::int64_t query = (span.first_row + row) * params_.num_heads + head;
        limits[num_queries] = span.start_position + row + 1;
        queries[num_queries] = params_.queries + query * pool.row_dim();
        outputs[num_queries] = params_.out + query * pool.latent_dim;
      }
    }
    thread_local device::HostBuffer scratch;
    table_.attention(
        {.num_queries = static_cast<std::int64_t>(num_queries),
         .limits = limits.data(),
         .queries = queries.data(),
         .outputs = outputs.data(),
         .keys = pool.rows,
         .values = pool.rows,
         .pool_is_bf16 = pool.dtype == DType::kBFloat16,
         .pages = span.pages,
         .page_size = pool.page_size,
         .page_stride = pool.page_size * pool.row_dim(),
         .head_dim = pool.row_dim(),
         .value_dim = pool.latent_dim,
         .scale = params_.scale,
         .scratch = simd::reserve<float>(scratch, simd::attention_scratch_floats(pool.row_dim()))});
  }

  const LatentAttentionParams& params_;
  const device::CpuStream& stream_;
  const simd::KernelTable& table_;
  std::int64_t heads_per_item_ = 0;
  std::int64_t rows_per_item_ = 0;
  std::int64_t items_per_block_ = 0;  ///< of the same rows
  AbortPoll abort_;
};

Status check_params(const LatentAttentionParams& params) {
  const LatentPool& pool = params.pool;
  if (params.num_heads < 1 || pool.latent_dim < 1 || pool.rope_dim < 0) {
    return {StatusCode::kInvalidArgument,
            fmt::format("latent attention: {} heads over rows of {} + {}", params.num_heads,
                        pool.latent_dim, pool.rope_dim)};
  }
  return check_paged_spans(
      kOp, params.spans,
      {.dtype = pool.dtype, .num_pages = pool.num_pages, .page_size = pool.page_size});
}

/// Brings the pairs into the half-split order, then rotates.
void rotate(const LatentRowsParams& params, const simd::KernelTable& table, std::int64_t row,
            const float* x, float* y) {
  const std::int64_t half = params.table->rotary_dim / 2;
  const std::int64_t step = params.interleaved ? 2 : 1;
  const float* second = params.interleaved ? x + 1 : x + half;
  for (std::int64_t i = 0; i < half; ++i) {
    y[i] = x[step * i];
    y[i + half] = second[step * i];
  }
  const std::int64_t angle = params.positions[row] * half;
  table.rotate(y, params.table->cos.data() + angle, params.table->sin.data() + angle, half);
}

void run_row(const LatentRowsParams& params, const simd::KernelTable& table, std::int64_t row) {
  const std::int64_t rotary = params.table->rotary_dim;
  const std::int64_t row_dim = params.latent_dim + rotary;
  const float* kv = params.kv + row * params.kv_stride;
  float* latent = params.latents + row * row_dim;
  table.rms_norm(kv, params.norm_weight, latent, params.latent_dim, params.eps);
  rotate(params, table, row, kv + params.latent_dim, latent + params.latent_dim);
  for (std::int64_t head = 0; head < params.num_heads; ++head) {
    const std::int64_t query = row * params.num_heads + head;
    rotate(params, table, row, params.q + query * (params.nope_dim + rotary) + params.nope_dim,
           params.queries + query * row_dim + params.latent_dim);
  }
}

}  // namespace

Status launch_latent_attention(const LatentAttentionParams& params,
                               const device::CpuStream& stream) {
  if (Status status = check_params(params); !status) {
    return status;
  }
  return LatentAttention(params, stream).run();
}

Status launch_latent_rows(const LatentRowsParams& params, const device::CpuStream& stream) {
  if (params.table == nullptr || params.kv_stride < params.latent_dim + params.table->rotary_dim) {
    return {StatusCode::kInvalidArgument,
            "latent rows: need a table and rows of latent and rotated key"};
  }
  if (auto status = params.table->check_positions("latent rows", params.positions, params.num_rows);
      !status) {
    return status;
  }
  const simd::KernelTable& table = simd::kernel_table(stream.isa);
  const auto elements = static_cast<double>(
      params.num_rows * (params.latent_dim + params.num_heads * params.table->rotary_dim));
  simd::split(stream, params.num_rows, 1,
              simd::estimated_microseconds(20.0 * elements, 8.0 * elements),
              [&](std::int64_t begin, std::int64_t end) {
                for (std::int64_t row = begin; row < end; ++row) {
                  run_row(params, table, row);
                }
              });
  return Status::ok();
}

}  // namespace fastfd::kernels
