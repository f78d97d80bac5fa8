// Every array that an FFN server has on its GPU beside weights and windows, with its size.
#include <algorithm>

#include "fastfd/ffn_server/gpu_ffn_server.h"
#include "ffn_server/gpu_worker.h"
#include "kernels/layout/row.h"

namespace fastfd::ffn_server {
namespace {

namespace cuda = kernels::cuda;

template <typename T>
std::size_t bytes_of(std::size_t count) {
  return std::max<std::size_t>(count, 1) * sizeof(T);
}

}  // namespace

std::vector<GpuFfnWorker::Lane::Array> GpuFfnWorker::Lane::arrays(
    const FfnServerOptions& options, const model::ModelSpec& spec,
    const std::vector<model::DeviceFfnDims>& layers) {
  const std::size_t tokens = std::size_t{options.max_lane_rows} * options.num_attention_servers;
  std::size_t num_experts = 0;  // the most of any layer, each
  std::size_t routes = 0;
  std::size_t hidden = 0;
  for (const model::DeviceFfnDims& layer : layers) {
    const std::size_t layer_routes = tokens * layer.routes_per_token;
    num_experts = std::max<std::size_t>(num_experts, layer.num_experts);
    routes = std::max(routes, layer_routes);
    hidden = std::max(hidden, layer_routes * layer.intermediate_dim);
  }
  const bool is_fp8 = spec.expert_dtype == DType::kFloat8E4M3;
  return {{&Lane::control, bytes_of<layout::LaneControl>(1)},
          {&Lane::ready, bytes_of<std::uint32_t>(1)},
          {&Lane::ctas_done, bytes_of<std::uint32_t>(1)},
          {&Lane::expert_begin, bytes_of<std::uint32_t>(num_experts + 1)},
          {&Lane::route_tokens, bytes_of<std::uint32_t>(routes)},
          {&Lane::route_weights, bytes_of<float>(routes)},
          {&Lane::num_tokens, bytes_of<std::uint32_t>(1)},
          {&Lane::token_route_begin, bytes_of<std::uint32_t>(tokens + 1)},
          {&Lane::token_routes, bytes_of<std::uint32_t>(routes)},
          {&Lane::token_rows, bytes_of<const void*>(tokens)},
          {&Lane::token_sources, bytes_of<cuda::TokenSource>(tokens)},
          {&Lane::peer_rows, bytes_of<std::uint32_t>(options.num_attention_servers)},
          {&Lane::times, bytes_of<layout::HopTimes>(std::size_t{spec.num_layers} + 1)},
          {&Lane::arrived_rows, bytes_of<std::uint32_t>(spec.num_layers)},
          {&Lane::hidden, bytes_of<std::byte>(hidden * dtype_bytes(spec.expert_dtype))},
          {&Lane::hidden_scales, bytes_of<float>(is_fp8 ? hidden / layout::kScaleGroup : 0)},
          {&Lane::outputs, bytes_of<std::byte>(routes * spec.hidden_dim *
                                               dtype_bytes(route_output_dtype(options)))}};
}

DType GpuFfnWorker::route_output_dtype(const FfnServerOptions& options) {
  return options.combine_dtype == DType::kFloat32 ? DType::kFloat32 : DType::kBFloat16;
}

std::uint64_t GpuFfnWorker::workspace_bytes(const FfnServerOptions& options,
                                            const model::ModelSpec& spec,
                                            const ExpertPlacement& placement) {
  constexpr std::uint64_t kAlignment = 256;          // DeviceBuffer
  constexpr std::uint64_t kShared = 4 * kAlignment;  // abort state, wait limit, window tables
  std::uint64_t lane = 0;
  std::vector<model::DeviceFfnDims> layers;
  for (const model::LayerSpec& layer : spec.layers) {
    layers.push_back(model::DeviceFfnDims::of(spec, layer.ffn, placement, options.rank));
  }
  for (const auto& array : Lane::arrays(options, spec, layers)) {
    lane += (array.num_bytes + kAlignment - 1) / kAlignment * kAlignment;
  }
  return kMaxLanes * lane + kShared;
}

std::uint64_t GpuFfnServer::workspace_bytes(const FfnServerOptions& options,
                                            const model::ModelSpec& spec,
                                            const ExpertPlacement& placement) {
  return GpuFfnWorker::workspace_bytes(options, spec, placement);
}

}  // namespace fastfd::ffn_server
