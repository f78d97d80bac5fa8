#include "attention_server/latent_attention.h"

#include <cstring>

#include "kernels/norm/op.h"

namespace fastfd::attention_server {
namespace {

/// transformers gives the norms inside attention their own default, not the model's rms_norm_eps.
constexpr float kInnerNormEps = 1e-6F;

}  // namespace

LatentAttention::LatentAttention(const AttentionServerOptions& options,
                                 const model::ModelSpec& spec)
    : options_(options),
      spec_(spec.latent),
      model_(spec),
      rope_(kernels::RopeTable::make(options.max_model_len, spec.rope)),
      pool_bytes_(std::size_t{options.num_pages} * options.page_size * spec_.row_dim() *
                  dtype_bytes(options.kv_dtype)),
      pages_(pool_bytes_ * spec.num_layers_of(model::AttentionKind::kLatent)) {
  const std::size_t rows = options.max_lane_rows;
  const std::size_t heads = rows * spec_.num_heads;
  q_down_.resize(rows * spec_.q_rank);
  q_.resize(heads * spec_.query_dim());
  kv_.resize(rows * spec_.row_dim());
  latents_.resize(rows * spec_.row_dim());
  queries_.resize(heads * spec_.row_dim());
  sums_.resize(heads * spec_.kv_rank);
  values_.resize(heads * spec_.value_dim);
  heads_.resize(spec_.num_heads);
}

kernels::LatentPool LatentAttention::pool(std::uint32_t index) {
  return {.rows = pages_.data() + pool_bytes_ * index,
          .dtype = options_.kv_dtype,
          .num_pages = options_.num_pages,
          .page_size = options_.page_size,
          .latent_dim = spec_.kv_rank,
          .rope_dim = spec_.rope_dim};
}

void LatentAttention::copy_page(PageId source, PageId target) {
  const std::size_t page_bytes = pool_bytes_ / options_.num_pages;
  for (std::byte* pool = pages_.data(); pool != pages_.data() + pages_.num_bytes();
       pool += pool_bytes_) {
    std::memcpy(pool + target * page_bytes, pool + source * page_bytes, page_bytes);
  }
}

Status LatentAttention::gemm(const AttentionRows& rows, const float* a,
                             const kernels::PackedWeights& weights, float* c, bool accumulate) {
  return kernels::launch_gemm({.m = rows.batch->num_rows,
                               .a = a,
                               .lda = weights.k(),
                               .weights = &weights,
                               .c = c,
                               .ldc = weights.n(),
                               .accumulate = accumulate,
                               .precision = options_.precision},
                              *rows.stream);
}

Status LatentAttention::project_heads(const AttentionRows& rows,
                                      const std::vector<kernels::PackedWeights>& weights,
                                      const float* from, std::int64_t from_dim, float* to,
                                      std::int64_t to_dim) {
  for (std::size_t head = 0; head < weights.size(); ++head) {
    const auto at = static_cast<std::int64_t>(head);
    heads_[head] = {.m = rows.batch->num_rows,
                    .a = from + at * from_dim,
                    .lda = spec_.num_heads * from_dim,
                    .weights = &weights[head],
                    .c = to + at * to_dim,
                    .ldc = spec_.num_heads * to_dim,
                    .precision = options_.precision};
  }
  return kernels::launch_gemm_batch(heads_, *rows.stream);
}

Status LatentAttention::project_queries(const AttentionRows& rows,
                                        const model::LatentAttentionWeights& weights) {
  if (spec_.q_rank == 0) {
    return gemm(rows, rows.normed, weights.q, q_.data());
  }
  auto status = gemm(rows, rows.normed, weights.q_down, q_down_.data());
  if (status) {
    status = kernels::launch_rms_norm({.num_rows = rows.batch->num_rows,
                                       .dim = spec_.q_rank,
                                       .x = q_down_.data(),
                                       .weight = weights.q_norm.data(),
                                       .y = q_down_.data(),
                                       .eps = kInnerNormEps},
                                      *rows.stream);
  }
  return status ? gemm(rows, q_down_.data(), weights.q, q_.data()) : status;
}

/// The new latent rows, and the queries that meet them.
Status LatentAttention::project_latents(const AttentionRows& rows,
                                        const model::LatentAttentionWeights& weights) {
  auto status = gemm(rows, rows.normed, weights.kv, kv_.data());
  if (status) {
    status = kernels::launch_latent_rows({.num_rows = rows.batch->num_rows,
                                          .num_heads = spec_.num_heads,
                                          .nope_dim = spec_.nope_dim,
                                          .latent_dim = spec_.kv_rank,
                                          .q = q_.data(),
                                          .kv = kv_.data(),
                                          .kv_stride = spec_.row_dim(),
                                          .norm_weight = weights.kv_norm.data(),
                                          .positions = rows.batch->positions.data(),
                                          .table = &rope_,
                                          .interleaved = spec_.interleaved_rope,
                                          .eps = kInnerNormEps,
                                          .latents = latents_.data(),
                                          .queries = queries_.data()},
                                         *rows.stream);
  }
  return status ? project_heads(rows, weights.keys, q_.data(), spec_.query_dim(), queries_.data(),
                                spec_.row_dim())
                : status;
}

Status LatentAttention::attend(const AttentionRows& rows) {
  return kernels::launch_latent_attention({.num_heads = spec_.num_heads,
                                           .queries = queries_.data(),
                                           .latents = latents_.data(),
                                           .pool = pool(model_.index_of_kind(rows.layer)),
                                           .spans = rows.batch->spans,
                                           .out = sums_.data(),
                                           .scale = spec_.scale,
                                           .abort = rows.abort},
                                          *rows.stream);
}

Status LatentAttention::project_values(const AttentionRows& rows,
                                       const model::LatentAttentionWeights& weights) {
  auto status = project_heads(rows, weights.values, sums_.data(), spec_.kv_rank, values_.data(),
                              spec_.value_dim);
  return status ? gemm(rows, values_.data(), weights.out, rows.residual, true) : status;
}

Status LatentAttention::run(const AttentionRows& rows,
                            const model::LatentAttentionWeights& weights) {
  auto status = project_queries(rows, weights);
  if (status) {
    status = project_latents(rows, weights);
  }
  if (status) {
    status = attend(rows);
  }
  return status ? project_values(rows, weights) : status;
}

}  // namespace fastfd::attention_server
