#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/latent_attention/op.h"

namespace fastfd::kernels {
namespace {

void rotate(const LatentRowsParams& params, std::int64_t row, const float* x, float* y) {
  const std::int64_t half = params.table->rotary_dim / 2;
  for (std::int64_t i = 0; i < half; ++i) {
    const auto angle = static_cast<std::size_t>(params.positions[row] * half + i);
    const float a = params.interleaved ? x[2 * i] : x[i];
    const float b = params.interleaved ? x[2 * i + 1] : x[i + half];
    const float cos = params.table->cos[angle];
    const float sin = params.table->sin[angle];
    y[i] = a * cos - b * sin;
    y[i + half] = b * cos + a * sin;
  }
}

std::size_t element(const LatentPool& pool, const AttentionSpan& span, std::int64_t position,
                    std::int64_t dim) {
  const std::int64_t page = span.pages[position / pool.page_size];
  return static_cast<std::size_t>(
      (page * pool.page_size + position % pool.page_size) * pool.row_dim() + dim);
}

float read(const LatentPool& pool, std::size_t index) {
  return pool.dtype == DType::kFloat32 ? static_cast<const float*>(pool.rows)[index]
                                       : static_cast<const bf16*>(pool.rows)[index].to_float();
}

void write(const LatentPool& pool, std::size_t index, float value) {
  if (pool.dtype == DType::kFloat32) {
    static_cast<float*>(pool.rows)[index] = value;
  } else {
    static_cast<bf16*>(pool.rows)[index] = bf16::from_float(value);
  }
}

void attend(const LatentAttentionParams& params, const AttentionSpan& span, std::int64_t row,
            std::int64_t head) {
  const LatentPool& pool = params.pool;
  const std::int64_t query = (span.first_row + row) * params.num_heads + head;
  const float* q = params.queries + query * pool.row_dim();
  const std::int64_t num_tokens = span.start_position + row + 1;
  std::vector<float> scores(static_cast<std::size_t>(num_tokens));
  for (std::int64_t t = 0; t < num_tokens; ++t) {
    float dot = 0.0F;
    for (std::int64_t d = 0; d < pool.row_dim(); ++d) {
      dot += q[d] * read(pool, element(pool, span, t, d));
    }
    scores[static_cast<std::size_t>(t)] = dot * params.scale;
  }
  const float largest = *std::max_element(scores.begin(), scores.end());
  float total = 0.0F;
  for (float& score : scores) {
    score = std::exp(score - largest);
    total += score;
  }
  for (std::int64_t d = 0; d < pool.latent_dim; ++d) {
    float sum = 0.0F;
    for (std::int64_t t = 0; t < num_tokens; ++t) {
      sum += scores[static_cast<std::size_t>(t)] * read(pool, element(pool, span, t, d));
    }
    params.out[query * pool.latent_dim + d] = sum / total;
  }
}

}  // namespace

void reference_latent_rows(const LatentRowsParams& params) {
  const std::int64_t rotary = params.table->rotary_dim;
  const std::int64_t row_dim = params.latent_dim + rotary;
  for (std::int64_t row = 0; row < params.num_rows; ++row) {
    const float* kv = params.kv + row * params.kv_stride;
    float* latent = params.latents + row * row_dim;
    float squares = 0.0F;
    for (std::int64_t d = 0; d < params.latent_dim; ++d) {
      squares += kv[d] * kv[d];
    }
    const float rms = std::sqrt(squares / static_cast<float>(params.latent_dim) + params.eps);
    for (std::int64_t d = 0; d < params.latent_dim; ++d) {
      latent[d] = kv[d] / rms * params.norm_weight[d];
    }
    rotate(params, row, kv + params.latent_dim, latent + params.latent_dim);
    for (std::int64_t head = 0; head < params.num_heads; ++head) {
      const std::int64_t query = row * params.num_heads + head;
      rotate(params, row, params.q + query * (params.nope_dim + rotary) + params.nope_dim,
             params.queries + query * row_dim + params.latent_dim);
    }
  }
}

void reference_latent_attention(const LatentAttentionParams& params) {
  const LatentPool& pool = params.pool;
  for (const AttentionSpan& span : params.spans) {
    for (std::int64_t row = 0; row < span.num_rows; ++row) {
      const float* latent = params.latents + (span.first_row + row) * pool.row_dim();
      for (std::int64_t d = 0; d < pool.row_dim(); ++d) {
        write(pool, element(pool, span, span.start_position + row, d), latent[d]);
      }
    }
    for (std::int64_t row = 0; row < span.num_rows; ++row) {
      for (std::int64_t head = 0; head < params.num_heads; ++head) {
        attend(params, span, row, head);
      }
    }
  }
}

}  // namespace fastfd::kernels
