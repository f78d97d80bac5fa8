#include "attention_server/gpu_gated_delta_net.h"

#include <algorithm>

#include "kernels/gated_delta_net/op_cuda.h"

namespace fastfd::attention_server {
namespace {

namespace cuda = kernels::cuda;

std::size_t conv_floats(const kernels::GatedDeltaNetShape& shape) {
  return static_cast<std::size_t>(shape.conv_state_floats());
}
std::size_t matrix_floats(const kernels::GatedDeltaNetShape& shape) {
  return static_cast<std::size_t>(cuda::recurrent_state_floats(shape));
}

std::size_t num_states(const AttentionServerOptions& options, const model::ModelSpec& spec) {
  return std::size_t{spec.num_layers_of(model::AttentionKind::kGatedDeltaNet)} * options.num_slots;
}

}  // namespace

GpuGatedDeltaNet::GpuGatedDeltaNet(const AttentionServerOptions& options,
                                   const model::ModelSpec& spec, const device::CudaDevice& device)
    : spec_(spec),
      num_slots_(options.num_slots),
      max_spans_(std::min(options.max_lane_rows, options.num_slots)),
      positions_(spec.has_recurrent_state() ? options.num_slots : 0) {
  if (spec.has_recurrent_state()) {
    const std::size_t count = num_states(options, spec) * sizeof(float);
    conv_states_ = device::DeviceBuffer(device, count * conv_floats(spec.gated_delta_net));
    recurrent_states_ = device::DeviceBuffer(device, count * matrix_floats(spec.gated_delta_net));
  }
}

Status GpuGatedDeltaNet::advance(const LaneBatch& batch) {
  Status status;
  for (std::size_t i = 0; status && positions_.num_states() != 0 && i < batch.spans.size(); ++i) {
    const SlotId slot = batch.span_slots[i];
    status = positions_.take(slot, slot, batch.spans[i]);
    positions_.advance(slot, batch.spans[i]);
  }
  return status;
}

Status GpuGatedDeltaNet::run(const GpuAttentionRows& rows,
                             const model::DeviceGatedDeltaNet& weights) const {
  const GpuLane& lane = *rows.lane;
  const auto& shape = spec_.gated_delta_net;
  const std::size_t first_state = std::size_t{spec_.index_of_kind(rows.layer)} * num_slots_;
  auto status = project(lane, rows.bucket,
                        {.n = shape.row_dim(),
                         .k = spec_.hidden_dim,
                         .a = lane.normed(),
                         .weights = weights.in,
                         .c = lane.delta_projected()});
  // A state is read and written, so a piece begins where those before it are done.
  if (status && rows.has_pieces) {
    status = rows.order->wait_for_others(rows.lane_id, rows.layer, lane.device_stream());
  }
  if (status) {
    status = cuda::launch_gated_delta_net(
        {.shape = shape,
         .max_rows = rows.bucket,
         .max_spans = std::min(rows.bucket, max_spans_),
         .control = lane.control(),
         .abort = rows.abort,
         .rows = lane.rows(),
         .spans = lane.spans(),
         .projected = lane.delta_projected(),
         .conv_weight = weights.conv,
         .a_log = weights.a_log,
         .dt_bias = weights.dt_bias,
         .norm_weight = weights.norm,
         .eps = spec_.rms_eps,
         .conv_states = conv_states_.as<float>() + first_state * conv_floats(shape),
         .recurrent_states = recurrent_states_.as<float>() + first_state * matrix_floats(shape),
         .mixed = lane.delta_mixed(),
         .heads = lane.delta_heads(),
         .out = lane.delta_out()},
        lane.stream());
  }
  if (status && rows.has_pieces) {
    status = rows.order->wrote(rows.lane_id, rows.layer, lane.device_stream());
  }
  return status ? project(lane, rows.bucket,
                          {.n = spec_.hidden_dim,
                           .k = shape.value_dim(),
                           .a = lane.delta_out(),
                           .weights = weights.out,
                           .c = lane.residual(),
                           .output = cuda::GemmOutput::kAddFloat32})
                : status;
}

}  // namespace fastfd::attention_server
