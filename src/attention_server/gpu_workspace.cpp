// Every array that an attention server has on its GPU beside weights and KV pool, with its size.
// The constructors allocate by these lists, so what is counted before is what is taken.
#include <algorithm>

#include "attention_server/gpu_lane.h"
#include "attention_server/gpu_runner.h"
#include "fastfd/attention_server/gpu_attention_server.h"

namespace fastfd::attention_server {
namespace {

namespace cuda = kernels::cuda;

template <typename T>
std::size_t bytes_of(std::size_t count) {
  return std::max<std::size_t>(count, 1) * sizeof(T);
}

/// With the allocator's alignment (DeviceBuffer).
template <typename Array>
std::uint64_t total_bytes(const std::vector<Array>& arrays) {
  constexpr std::uint64_t kAlignment = 256;
  std::uint64_t total = 0;
  for (const Array& array : arrays) {
    total += (array.num_bytes + kAlignment - 1) / kAlignment * kAlignment;
  }
  return total;
}

}  // namespace

cuda::AttentionWorkspace GpuLane::make_workspace(const model::ModelSpec& spec,
                                                 const GpuLaneShape& shape) {
  if (spec.num_layers_of(model::AttentionKind::kLatent) > 0) {
    return cuda::AttentionWorkspace::of(cuda::latent_bucket(
        shape.max_rows, shape.max_spans, shape.max_context, spec.latent.num_heads));
  }
  return cuda::AttentionWorkspace::of({.max_rows = shape.max_rows,
                                       .max_spans = shape.max_spans,
                                       .max_context = shape.max_context,
                                       .num_q_heads = spec.num_q_heads,
                                       .num_kv_heads = spec.num_kv_heads,
                                       .head_dim = spec.head_dim});
}

std::vector<GpuLane::Array> GpuLane::arrays(const model::ModelSpec& spec,
                                            const GpuLaneShape& shape) {
  const std::size_t rows = shape.max_rows;
  const std::size_t spans = shape.max_spans;
  const std::size_t q_dim = std::size_t{spec.num_q_heads} * spec.head_dim;
  const std::size_t kv_dim = std::size_t{spec.num_kv_heads} * spec.head_dim;
  const auto& delta = spec.gated_delta_net;
  const auto delta_dim = [&](std::int64_t dim) {
    return spec.has_recurrent_state() ? static_cast<std::size_t>(dim) : 0;
  };
  // Of models with latent attention; of the others nothing.
  const auto& latent = spec.latent;
  const std::size_t heads = rows * latent.num_heads;
  const std::size_t scratch =
      cuda::router_scratch_floats(shape.max_rows, spec.num_experts, spec.hidden_dim);
  return {
      {&GpuLane::control_, bytes_of<layout::LaneControl>(1)},
      {&GpuLane::rows_, bytes_of<layout::LaneRow>(rows)},
      {&GpuLane::spans_, bytes_of<layout::LaneSpan>(spans)},
      {&GpuLane::samples_, bytes_of<layout::LaneSample>(spans)},
      {&GpuLane::residual_, bytes_of<float>(rows * spec.hidden_dim)},
      {&GpuLane::normed_, bytes_of<bf16>(rows * spec.hidden_dim)},
      {&GpuLane::qkv_, bytes_of<bf16>(rows * (q_dim + 2 * kv_dim))},
      {&GpuLane::q_, bytes_of<bf16>(rows * q_dim)},
      {&GpuLane::attention_out_, bytes_of<bf16>(rows * q_dim)},
      {&GpuLane::gate_, bytes_of<bf16>(spec.has_output_gate ? rows * q_dim : 0)},
      {&GpuLane::delta_projected_, bytes_of<bf16>(rows * delta_dim(delta.row_dim()))},
      {&GpuLane::delta_mixed_, bytes_of<float>(rows * delta_dim(delta.conv_dim()))},
      {&GpuLane::delta_heads_, bytes_of<float>(rows * delta_dim(delta.value_dim()))},
      {&GpuLane::delta_out_, bytes_of<bf16>(rows * delta_dim(delta.value_dim()))},
      {&GpuLane::latent_q_down_, bytes_of<float>(rows * latent.q_rank)},
      {&GpuLane::latent_q_normed_, bytes_of<bf16>(rows * latent.q_rank)},
      {&GpuLane::latent_q_, bytes_of<bf16>(heads * latent.query_dim())},
      {&GpuLane::latent_kv_, bytes_of<float>(rows * latent.row_dim())},
      {&GpuLane::latent_queries_, bytes_of<bf16>(heads * latent.row_dim())},
      {&GpuLane::latent_sums_, bytes_of<bf16>(heads * latent.kv_rank)},
      {&GpuLane::latent_values_, bytes_of<bf16>(heads * latent.value_dim)},
      {&GpuLane::inverse_rms_,
       bytes_of<float>(spec.qk_norm == kernels::QkNorm::kWhole ? 2 * rows : 0)},
      {&GpuLane::shared_gate_up_, bytes_of<bf16>(rows * 2 * spec.shared_intermediate_dim)},
      {&GpuLane::shared_hidden_, bytes_of<bf16>(rows * spec.shared_intermediate_dim)},
      {&GpuLane::row_index_, bytes_of<std::int32_t>(shape.num_servers * rows)},
      {&GpuLane::sent_rows_, bytes_of<std::uint32_t>(shape.num_servers)},
      {&GpuLane::partial_logits_, bytes_of<float>(scratch)},
      {&GpuLane::counters_, bytes_of<cuda::DispatchCounters>(1)},
      {&GpuLane::ready_, bytes_of<std::uint32_t>(1)},
      {&GpuLane::times_, bytes_of<layout::HopTimes>(num_times(shape.num_layers))},
      {&GpuLane::logits_, bytes_of<float>(spans * spec.vocab_size)},
      {&GpuLane::adjusted_logits_, bytes_of<float>(spans * spec.vocab_size)},
      {&GpuLane::results_, bytes_of<cuda::SampledRow>(spans)},
      {&GpuLane::workspace_memory_, bytes_of<std::byte>(make_workspace(spec, shape).num_bytes())}};
}

std::uint64_t GpuLane::num_bytes(const model::ModelSpec& spec, const GpuLaneShape& shape) {
  return total_bytes(arrays(spec, shape));
}

std::vector<GpuRunner::Array> GpuRunner::arrays(const AttentionServerOptions& options,
                                                const model::ModelSpec& spec) {
  const std::size_t slots = options.num_slots;
  const std::size_t pages_per_slot = GpuRunner::pages_per_slot(options);
  return {
      {&GpuRunner::page_tables_, bytes_of<PageId>(slots * pages_per_slot)},
      {&GpuRunner::last_tokens_, bytes_of<TokenId>(slots)},
      {&GpuRunner::slot_sampling_, bytes_of<cuda::SlotSampling>(slots)},
      {&GpuRunner::logit_biases_, bytes_of<cuda::LogitBias>(slots * kMaxLogitBiases)},
      {&GpuRunner::stop_tokens_, bytes_of<TokenId>(slots * kMaxStopTokens)},
      {&GpuRunner::token_counts_, bytes_of<std::uint32_t>(slots * spec.vocab_size)},
      {&GpuRunner::placement_, bytes_of<ExpertPlacement::Target>(spec.num_experts)},
      {&GpuRunner::slices_, bytes_of<ExpertPlacement::Target>(options.num_ffn_servers)},
      {&GpuRunner::dispatch_windows_, bytes_of<std::byte*>(options.num_ffn_servers)},
      {&GpuRunner::combine_windows_, bytes_of<std::byte*>(options.num_ffn_servers)},
      {&GpuRunner::abort_, bytes_of<layout::AbortState>(1)},
      {&GpuRunner::timeout_ns_, bytes_of<std::uint64_t>(1)},
      {&GpuRunner::histories_on_device_, kNumHistories * history_bytes(options)},
  };
}

std::size_t GpuRunner::history_bytes(const AttentionServerOptions& options) {
  return sizeof(cuda::TokenHistory) + bytes_of<TokenId>(options.max_model_len);
}

std::uint64_t GpuRunner::workspace_bytes(const AttentionServerOptions& options,
                                         const model::ModelSpec& spec) {
  return total_bytes(arrays(options, spec)) + GpuFullAttention::workspace_bytes(options, spec) +
         GpuLatentAttention::workspace_bytes(options, spec) +
         kMaxLanes * GpuLane::num_bytes(spec, lane_shape(options, spec));
}

std::uint64_t GpuAttentionServer::workspace_bytes(const AttentionServerOptions& options,
                                                  const model::ModelSpec& spec) {
  return GpuRunner::workspace_bytes(options, spec);
}

}  // namespace fastfd::attention_server
