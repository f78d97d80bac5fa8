#include "attention_server/gpu_full_attention.h"

#include <cmath>

#include "kernels/attention/op_cuda.h"
#include "kernels/rope/op_cuda.h"
#include "kernels/sigmoid_gate/op_cuda.h"

namespace fastfd::attention_server {

namespace cuda = kernels::cuda;

GpuFullAttention::GpuFullAttention(const AttentionServerOptions& options,
                                   const model::ModelSpec& spec, const device::GpuPart& gpu,
                                   const device::DeviceStream& stream)
    : options_(options),
      spec_(spec),
      num_sms_(gpu.num_sms()),
      num_layers_(spec.num_layers_of(model::AttentionKind::kFull)),
      pool_bytes_(std::size_t{options.num_pages} * options.page_size * spec.kv_dim() *
                  dtype_bytes(options.kv_dtype)) {
  if (num_layers_ == 0) {
    return;
  }
  const device::CudaDevice& device = gpu.device();
  kv_ = device::DeviceBuffer(device, std::size_t{2} * num_layers_ * pool_bytes_);
  rope_ = GpuRopeTable(options.max_model_len, spec.rope, device, stream);
  require(cuda::prepare_paged_attention(), "attention kernels");
}

std::uint64_t GpuFullAttention::workspace_bytes(const AttentionServerOptions& options,
                                                const model::ModelSpec& spec) {
  return spec.num_layers_of(model::AttentionKind::kFull) == 0
             ? 0
             : GpuRopeTable::num_bytes(options.max_model_len, spec.rope);
}

cuda::PagedKv GpuFullAttention::kv_of(const GpuAttentionRows& rows) const {
  std::byte* keys = kv_.data() + std::size_t{2} * spec_.index_of_kind(rows.layer) * pool_bytes_;
  return {.keys = keys,
          .values = keys + pool_bytes_,
          .dtype = options_.kv_dtype,
          .page_size = options_.page_size,
          .num_kv_heads = spec_.num_kv_heads,
          .head_dim = spec_.head_dim,
          .page_tables = rows.page_tables,
          .pages_per_slot = rows.pages_per_slot};
}

Status GpuFullAttention::copy_page(device::CudaStream stream, const PageCopy& copy) const {
  const std::size_t page_bytes = pool_bytes_ / options_.num_pages;
  Status status;
  for (std::uint32_t half = 0; status && half < 2 * num_layers_; ++half) {
    std::byte* pool = kv_.data() + half * pool_bytes_;
    status = device::copy_async(pool + copy.target * page_bytes, pool + copy.source * page_bytes,
                                page_bytes, stream);
  }
  return status;
}

Status GpuFullAttention::write_kv(const GpuAttentionRows& rows,
                                  const model::DeviceFullAttention& weights) const {
  const GpuLane& lane = *rows.lane;
  auto status = project(lane, rows.bucket,
                        {.n = spec_.q_dim() + 2 * std::int64_t{spec_.kv_dim()},
                         .k = spec_.hidden_dim,
                         .a = lane.normed(),
                         .weights = weights.qkv,
                         .c = lane.qkv(),
                         .bias = weights.qkv_bias});
  if (status) {
    status = cuda::launch_rope_kv_write({.max_rows = rows.bucket,
                                         .num_q_heads = spec_.num_q_heads,
                                         .control = lane.control(),
                                         .abort = rows.abort,
                                         .rows = lane.rows(),
                                         .qkv = lane.qkv(),
                                         .q = lane.q(),
                                         .kv = kv_of(rows),
                                         .norm = spec_.qk_norm,
                                         .q_norm_weight = weights.q_norm,
                                         .k_norm_weight = weights.k_norm,
                                         .inverse_rms = lane.inverse_rms(),
                                         .cos = rope_.cos(),
                                         .sin = rope_.sin(),
                                         .max_positions = options_.max_model_len,
                                         .rotary_dim = spec_.rope.rotary_dim,
                                         .eps = spec_.rms_eps},
                                        lane.stream());
  }
  return status;
}

Status GpuFullAttention::apply_gate(const GpuAttentionRows& rows,
                                    const model::DeviceFullAttention& weights) const {
  const GpuLane& lane = *rows.lane;
  auto status = project(lane, rows.bucket,
                        {.n = spec_.q_dim(),
                         .k = spec_.hidden_dim,
                         .a = lane.normed(),
                         .weights = weights.gate,
                         .c = lane.gate()});
  if (status) {
    status = cuda::launch_sigmoid_gate({.max_rows = rows.bucket,
                                        .dim = spec_.q_dim(),
                                        .control = lane.control(),
                                        .gate = lane.gate(),
                                        .y = lane.attention_out()},
                                       lane.stream());
  }
  return status;
}

Status GpuFullAttention::run(const GpuAttentionRows& rows,
                             const model::DeviceFullAttention& weights) const {
  const GpuLane& lane = *rows.lane;
  auto status = write_kv(rows, weights);
  if (status) {
    status = meet_other_pieces(rows);
  }
  if (status) {
    status = cuda::launch_paged_attention(
        {.workspace = lane.workspace(),
         .num_sms = num_sms_,
         .abort = rows.abort,
         .spans = lane.spans(),
         .kv = kv_of(rows),
         .q = lane.q(),
         .out = lane.attention_out(),
         .scale = 1.0F / std::sqrt(static_cast<float>(spec_.head_dim))},
        lane.stream());
  }
  if (status && weights.gate != nullptr) {
    status = apply_gate(rows, weights);
  }
  return status ? project(lane, rows.bucket,
                          {.n = spec_.hidden_dim,
                           .k = spec_.q_dim(),
                           .a = lane.attention_out(),
                           .weights = weights.out,
                           .c = lane.residual(),
                           .output = cuda::GemmOutput::kAddFloat32,
                           .bias = weights.out_bias})
                : status;
}

}  // namespace fastfd::attention_server
