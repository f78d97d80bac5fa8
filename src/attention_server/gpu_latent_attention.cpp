#include "attention_server/gpu_latent_attention.h"

#include "kernels/norm/op_cuda.h"

namespace fastfd::attention_server {
namespace {

namespace cuda = kernels::cuda;

/// As on the CPU: transformers gives the norms inside attention their own default.
constexpr float kInnerNormEps = 1e-6F;

}  // namespace

GpuLatentAttention::GpuLatentAttention(const AttentionServerOptions& options,
                                       const model::ModelSpec& spec, const device::GpuPart& gpu,
                                       const device::DeviceStream& stream)
    : options_(options),
      spec_(spec),
      latent_(spec.latent),
      num_sms_(gpu.num_sms()),
      num_layers_(spec.num_layers_of(model::AttentionKind::kLatent)),
      pool_bytes_(std::size_t{options.num_pages} * options.page_size * latent_.row_dim() *
                  sizeof(bf16)) {
  if (num_layers_ == 0) {
    return;
  }
  const device::CudaDevice& device = gpu.device();
  pages_ = device::DeviceBuffer(device, num_layers_ * pool_bytes_);
  rope_ = GpuRopeTable(options.max_model_len, spec.rope, device, stream);
  require(cuda::prepare_latent_attention(), "latent attention kernels");
}

std::uint64_t GpuLatentAttention::workspace_bytes(const AttentionServerOptions& options,
                                                  const model::ModelSpec& spec) {
  return spec.num_layers_of(model::AttentionKind::kLatent) == 0
             ? 0
             : GpuRopeTable::num_bytes(options.max_model_len, spec.rope);
}

cuda::PagedLatents GpuLatentAttention::latents_of(const GpuAttentionRows& rows) const {
  std::byte* pool = pages_.data() + spec_.index_of_kind(rows.layer) * pool_bytes_;
  return {.rows = reinterpret_cast<bf16*>(pool),
          .page_size = options_.page_size,
          .page_tables = rows.page_tables,
          .pages_per_slot = rows.pages_per_slot};
}

Status GpuLatentAttention::copy_page(device::CudaStream stream, const PageCopy& copy) const {
  const std::size_t page_bytes = pool_bytes_ / options_.num_pages;
  Status status;
  for (std::uint32_t layer = 0; status && layer < num_layers_; ++layer) {
    std::byte* pool = pages_.data() + layer * pool_bytes_;
    status = device::copy_async(pool + copy.target * page_bytes, pool + copy.source * page_bytes,
                                page_bytes, stream);
  }
  return status;
}

Status GpuLatentAttention::project_queries(const GpuAttentionRows& rows,
                                           const model::DeviceLatentAttention& weights) const {
  const GpuLane& lane = *rows.lane;
  const std::int64_t q_dim = std::int64_t{latent_.num_heads} * latent_.query_dim();
  if (latent_.q_rank == 0) {
    return project(lane, rows.bucket,
                   {.n = q_dim,
                    .k = spec_.hidden_dim,
                    .a = lane.normed(),
                    .weights = weights.q,
                    .c = lane.latent_q()});
  }
  auto status = project(lane, rows.bucket,
                        {.n = latent_.q_rank,
                         .k = spec_.hidden_dim,
                         .a = lane.normed(),
                         .weights = weights.q_down,
                         .c = lane.latent_q_down(),
                         .output = cuda::GemmOutput::kFloat32});
  if (status) {
    status = cuda::launch_rms_norm({.max_rows = rows.bucket,
                                    .dim = latent_.q_rank,
                                    .control = lane.control(),
                                    .x = lane.latent_q_down(),
                                    .weight = weights.q_norm,
                                    .y = lane.latent_q_normed(),
                                    .eps = kInnerNormEps},
                                   lane.stream());
  }
  return status ? project(lane, rows.bucket,
                          {.n = q_dim,
                           .k = latent_.q_rank,
                           .a = lane.latent_q_normed(),
                           .weights = weights.q,
                           .c = lane.latent_q()})
                : status;
}

Status GpuLatentAttention::project_latents(const GpuAttentionRows& rows,
                                           const model::DeviceLatentAttention& weights) const {
  const GpuLane& lane = *rows.lane;
  const std::int64_t heads = latent_.num_heads;
  auto status = project(lane, rows.bucket,
                        {.n = latent_.row_dim(),
                         .k = spec_.hidden_dim,
                         .a = lane.normed(),
                         .weights = weights.kv,
                         .c = lane.latent_kv(),
                         .output = cuda::GemmOutput::kFloat32});
  if (status) {
    status = cuda::launch_latent_rows({.max_rows = rows.bucket,
                                       .num_heads = heads,
                                       .nope_dim = latent_.nope_dim,
                                       .control = lane.control(),
                                       .abort = rows.abort,
                                       .rows = lane.rows(),
                                       .q = lane.latent_q(),
                                       .kv = lane.latent_kv(),
                                       .norm_weight = weights.kv_norm,
                                       .cos = rope_.cos(),
                                       .sin = rope_.sin(),
                                       .max_positions = options_.max_model_len,
                                       .interleaved = latent_.interleaved_rope,
                                       .eps = kInnerNormEps,
                                       .latents = latents_of(rows),
                                       .queries = lane.latent_queries()},
                                      lane.stream());
  }
  return status ? cuda::launch_gemm({.max_rows = rows.bucket,
                                     .num_rows = &lane.control()->num_rows,
                                     .n = latent_.kv_rank,
                                     .k = latent_.nope_dim,
                                     .a = lane.latent_q(),
                                     .lda = heads * latent_.query_dim(),
                                     .weights = weights.keys,
                                     .c = lane.latent_queries(),
                                     .ldc = heads * latent_.row_dim(),
                                     .num_batches = heads,
                                     .batch_stride_a = latent_.query_dim(),
                                     .batch_stride_c = latent_.row_dim()},
                                    lane.stream())
                : status;
}

Status GpuLatentAttention::project_values(const GpuAttentionRows& rows,
                                          const model::DeviceLatentAttention& weights) const {
  const GpuLane& lane = *rows.lane;
  const std::int64_t heads = latent_.num_heads;
  auto status = cuda::launch_gemm({.max_rows = rows.bucket,
                                   .num_rows = &lane.control()->num_rows,
                                   .n = latent_.value_dim,
                                   .k = latent_.kv_rank,
                                   .a = lane.latent_sums(),
                                   .lda = heads * latent_.kv_rank,
                                   .weights = weights.values,
                                   .c = lane.latent_values(),
                                   .ldc = heads * latent_.value_dim,
                                   .num_batches = heads,
                                   .batch_stride_a = latent_.kv_rank,
                                   .batch_stride_c = latent_.value_dim},
                                  lane.stream());
  return status ? project(lane, rows.bucket,
                          {.n = spec_.hidden_dim,
                           .k = heads * latent_.value_dim,
                           .a = lane.latent_values(),
                           .weights = weights.out,
                           .c = lane.residual(),
                           .output = cuda::GemmOutput::kAddFloat32})
                : status;
}

Status GpuLatentAttention::run(const GpuAttentionRows& rows,
                               const model::DeviceLatentAttention& weights) const {
  const GpuLane& lane = *rows.lane;
  auto status = project_queries(rows, weights);
  if (status) {
    status = project_latents(rows, weights);
  }
  if (status) {
    status = meet_other_pieces(rows);
  }
  if (status) {
    status = cuda::launch_latent_attention({.workspace = lane.workspace(),
                                            .num_sms = num_sms_,
                                            .abort = rows.abort,
                                            .spans = lane.spans(),
                                            .latents = latents_of(rows),
                                            .queries = lane.latent_queries(),
                                            .out = lane.latent_sums(),
                                            .scale = latent_.scale},
                                           lane.stream());
  }
  return status ? project_values(rows, weights) : status;
}

}  // namespace fastfd::attention_server
