#include "attention_server/gated_delta_net.h"

#include "kernels/gemm/op.h"

namespace fastfd::attention_server {

GatedDeltaNet::GatedDeltaNet(const AttentionServerOptions& options, const model::ModelSpec& spec)
    : options_(options),
      spec_(spec),
      states_(spec.num_layers_of(model::AttentionKind::kGatedDeltaNet), options.num_slots,
              spec.gated_delta_net) {
  if (spec.has_recurrent_state()) {
    const std::size_t rows = options.max_lane_rows;
    projected_.resize(rows * static_cast<std::size_t>(spec.gated_delta_net.row_dim()));
    out_.resize(rows * static_cast<std::size_t>(spec.gated_delta_net.value_dim()));
  }
}

Status GatedDeltaNet::run(const AttentionRows& rows, const model::GatedDeltaNetWeights& weights) {
  const std::uint32_t layer = spec_.index_of_kind(rows.layer);
  auto status = states_.take(layer, *rows.batch, spans_);
  if (status) {
    status = kernels::launch_gemm({.m = rows.batch->num_rows,
                                   .a = rows.normed,
                                   .lda = weights.in.k(),
                                   .weights = &weights.in,
                                   .c = projected_.data(),
                                   .ldc = weights.in.n(),
                                   .precision = options_.precision},
                                  *rows.stream);
  }
  if (status) {
    status = kernels::launch_gated_delta_net({.shape = spec_.gated_delta_net,
                                              .projected = projected_.data(),
                                              .conv_weight = weights.conv.data(),
                                              .a_log = weights.a_log.data(),
                                              .dt_bias = weights.dt_bias.data(),
                                              .norm_weight = weights.norm.data(),
                                              .eps = spec_.rms_eps,
                                              .spans = spans_,
                                              .out = out_.data(),
                                              .abort = rows.abort},
                                             *rows.stream);
  }
  if (!status) {
    return status;
  }
  states_.advance(layer, *rows.batch);
  return kernels::launch_gemm({.m = rows.batch->num_rows,
                               .a = out_.data(),
                               .lda = weights.out.k(),
                               .weights = &weights.out,
                               .c = rows.residual,
                               .ldc = weights.out.n(),
                               .accumulate = true,
                               .precision = options_.precision},
                              *rows.stream);
}

}  // namespace fastfd::attention_server
