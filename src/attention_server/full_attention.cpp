#include "attention_server/full_attention.h"

#include <cmath>

#include "kernels/gemm/op.h"
#include "kernels/sigmoid_gate/op.h"

namespace fastfd::attention_server {
namespace {

const float* data_or_null(const std::vector<float>& values) {
  return values.empty() ? nullptr : values.data();
}

}  // namespace

FullAttention::FullAttention(const AttentionServerOptions& options, const model::ModelSpec& spec)
    : options_(options),
      spec_(spec),
      kv_cache_(spec.num_layers_of(model::AttentionKind::kFull), options.num_pages,
                options.page_size, spec.num_kv_heads, spec.head_dim, options.kv_dtype),
      rope_(kernels::RopeTable::make(options.max_model_len, spec.rope)) {
  const std::size_t rows = options.max_lane_rows;
  qkv_.resize(rows * (spec.q_dim() + 2 * spec.kv_dim()));
  out_.resize(rows * spec.q_dim());
  gate_.resize(spec.has_output_gate ? out_.size() : 0);
}

Status FullAttention::project(const AttentionRows& rows,
                              const model::FullAttentionWeights& weights) {
  auto status = kernels::launch_gemm({.m = rows.batch->num_rows,
                                      .a = rows.normed,
                                      .lda = weights.qkv.k(),
                                      .weights = &weights.qkv,
                                      .c = qkv_.data(),
                                      .ldc = weights.qkv.n(),
                                      .bias = data_or_null(weights.qkv_bias),
                                      .precision = options_.precision},
                                     *rows.stream);
  if (status) {
    status = kernels::launch_qk_norm_rope({.num_rows = rows.batch->num_rows,
                                           .num_q_heads = spec_.num_q_heads,
                                           .num_kv_heads = spec_.num_kv_heads,
                                           .head_dim = spec_.head_dim,
                                           .qkv = qkv_.data(),
                                           .norm = spec_.qk_norm,
                                           .q_norm_weight = data_or_null(weights.q_norm),
                                           .k_norm_weight = data_or_null(weights.k_norm),
                                           .positions = rows.batch->positions.data(),
                                           .table = &rope_,
                                           .eps = spec_.rms_eps},
                                          *rows.stream);
  }
  return status;
}

Status FullAttention::apply_gate(const AttentionRows& rows,
                                 const model::FullAttentionWeights& weights) {
  auto status = kernels::launch_gemm({.m = rows.batch->num_rows,
                                      .a = rows.normed,
                                      .lda = weights.gate.k(),
                                      .weights = &weights.gate,
                                      .c = gate_.data(),
                                      .ldc = weights.gate.n(),
                                      .precision = options_.precision},
                                     *rows.stream);
  if (status) {
    status = kernels::launch_sigmoid_gate({.num_rows = rows.batch->num_rows,
                                           .dim = weights.gate.n(),
                                           .gate = gate_.data(),
                                           .y = out_.data()},
                                          *rows.stream);
  }
  return status;
}

Status FullAttention::run(const AttentionRows& rows, const model::FullAttentionWeights& weights) {
  auto status = project(rows, weights);
  if (status) {
    status = kernels::launch_paged_attention(
        {.num_q_heads = spec_.num_q_heads,
         .qkv = qkv_.data(),
         .pool = kv_cache_.pool(spec_.index_of_kind(rows.layer)),
         .spans = rows.batch->spans,
         .out = out_.data(),
         .scale = 1.0F / std::sqrt(static_cast<float>(spec_.head_dim)),
         .window = spec_.layers[rows.layer].window,
         .sinks = data_or_null(weights.sinks),
         .abort = rows.abort},
        *rows.stream);
  }
  if (status && spec_.has_output_gate) {
    status = apply_gate(rows, weights);
  }
  if (status) {
    status = kernels::launch_gemm({.m = rows.batch->num_rows,
                                   .a = out_.data(),
                                   .lda = weights.out.k(),
                                   .weights = &weights.out,
                                   .c = rows.residual,
                                   .ldc = weights.out.n(),
                                   .accumulate = true,
                                   .bias = data_or_null(weights.out_bias),
                                   .precision = options_.precision},
                                  *rows.stream);
  }
  return status;
}

}  // namespace fastfd::attention_server
