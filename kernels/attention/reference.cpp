#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/attention/op.h"

namespace fastfd::kernels {
namespace {

std::size_t element(const KvPool& pool, const AttentionSpan& span, std::int64_t head,
                    std::int64_t position, std::int64_t dim) {
  const std::int64_t page = span.pages[position / pool.page_size];
  const std::int64_t offset = position % pool.page_size;
  return static_cast<std::size_t>(
      ((page * pool.num_kv_heads + head) * pool.page_size + offset) * pool.head_dim + dim);
}

float read(const void* data, DType dtype, std::size_t index) {
  return dtype == DType::kFloat32 ? static_cast<const float*>(data)[index]
                                  : static_cast<const bf16*>(data)[index].to_float();
}

void write(void* data, DType dtype, std::size_t index, float value) {
  if (dtype == DType::kFloat32) {
    static_cast<float*>(data)[index] = value;
  } else {
    static_cast<bf16*>(data)[index] = bf16::from_float(value);
  }
}

void write_kv(const PagedAttentionParams& params, const AttentionSpan& span) {
  const KvPool& pool = params.pool;
  const std::int64_t row_dim = (params.num_q_heads + 2 * pool.num_kv_heads) * pool.head_dim;
  for (std::int64_t i = 0; i < span.num_rows; ++i) {
    const float* k =
        params.qkv + (span.first_row + i) * row_dim + params.num_q_heads * pool.head_dim;
    const float* v = k + pool.num_kv_heads * pool.head_dim;
    for (std::int64_t head = 0; head < pool.num_kv_heads; ++head) {
      for (std::int64_t d = 0; d < pool.head_dim; ++d) {
        const std::size_t index = element(pool, span, head, span.start_position + i, d);
        write(pool.keys, pool.dtype, index, k[head * pool.head_dim + d]);
        write(pool.values, pool.dtype, index, v[head * pool.head_dim + d]);
      }
    }
  }
}

void attend(const PagedAttentionParams& params, const AttentionSpan& span, std::int64_t row,
            std::int64_t q_head) {
  const KvPool& pool = params.pool;
  const std::int64_t row_dim = (params.num_q_heads + 2 * pool.num_kv_heads) * pool.head_dim;
  const std::int64_t kv_head = q_head / (params.num_q_heads / pool.num_kv_heads);
  const float* q = params.qkv + (span.first_row + row) * row_dim + q_head * pool.head_dim;
  const std::int64_t end = span.start_position + row + 1;
  const std::int64_t begin = params.window > 0 ? std::max<std::int64_t>(end - params.window, 0) : 0;

  std::vector<float> scores;
  for (std::int64_t t = begin; t < end; ++t) {
    float dot = 0.0F;
    for (std::int64_t d = 0; d < pool.head_dim; ++d) {
      dot += q[d] * read(pool.keys, pool.dtype, element(pool, span, kv_head, t, d));
    }
    scores.push_back(dot * params.scale);
  }
  if (params.sinks != nullptr) {
    scores.push_back(params.sinks[q_head]);  // the last, which no value belongs to
  }
  const float largest = *std::max_element(scores.begin(), scores.end());
  float total = 0.0F;
  for (float& score : scores) {
    score = std::exp(score - largest);
    total += score;
  }
  float* out = params.out + (span.first_row + row) * params.num_q_heads * pool.head_dim +
               q_head * pool.head_dim;
  for (std::int64_t d = 0; d < pool.head_dim; ++d) {
    float sum = 0.0F;
    for (std::int64_t t = begin; t < end; ++t) {
      sum += scores[static_cast<std::size_t>(t - begin)] *
             read(pool.values, pool.dtype, element(pool, span, kv_head, t, d));
    }
    out[d] = sum / total;
  }
}

}  // namespace

void reference_paged_attention(const PagedAttentionParams& params) {
  for (const AttentionSpan& span : params.spans) {
    write_kv(params, span);
    for (std::int64_t row = 0; row < span.num_rows; ++row) {
      for (std::int64_t head = 0; head < params.num_q_heads; ++head) {
        attend(params, span, row, head);
      }
    }
  }
}

}  // namespace fastfd::kernels
