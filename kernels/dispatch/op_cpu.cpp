#include <cstring>
#include <string>

#include "kernels/dispatch/op.h"

namespace fastfd::kernels {
namespace {

void store_row(const float* source, std::int64_t hidden_dim, DType dtype, std::byte* target) {
  if (dtype == DType::kFloat32) {
    std::memcpy(target, source, static_cast<std::size_t>(hidden_dim) * sizeof(float));
    return;
  }
  auto* out = reinterpret_cast<bf16*>(target);
  for (std::int64_t i = 0; i < hidden_dim; ++i) {
    out[i] = bf16::from_float(source[i]);
  }
}

}  // namespace

Status launch_dispatch(const DispatchParams& params) {
  const auto num_servers = static_cast<std::int64_t>(params.targets.size());
  const std::size_t row_bytes =
      static_cast<std::size_t>(params.hidden_dim) * dtype_bytes(params.dtype);
  for (auto& target : params.targets) {
    target.num_rows = 0;
    target.num_routes = 0;
    target.route_offsets[0] = 0;
  }
  for (std::int64_t row = 0; row < params.num_rows; ++row) {
    for (std::int64_t rank = 0; rank < num_servers; ++rank) {
      params.row_index[rank * params.num_rows + row] = -1;
    }
    for (std::int64_t k = 0; k < params.top_k; ++k) {
      const std::int32_t expert = params.experts[row * params.top_k + k];
      if (expert < 0 || static_cast<std::uint32_t>(expert) >= params.placement->num_experts()) {
        return {StatusCode::kInternal, "the router chose expert " + std::to_string(expert) +
                                           " of " +
                                           std::to_string(params.placement->num_experts())};
      }
      const auto to =
          params.placement->target(static_cast<std::uint32_t>(expert), params.attention_rank);
      DispatchTarget& target = params.targets[to.ffn_rank];
      std::int32_t& index = params.row_index[to.ffn_rank * params.num_rows + row];
      if (index < 0) {
        index = static_cast<std::int32_t>(target.num_rows++);
        store_row(params.hidden + row * params.hidden_dim, params.hidden_dim, params.dtype,
                  target.rows + static_cast<std::size_t>(index) * row_bytes);
      }
      target.route_experts[target.num_routes] = to.local_expert;
      target.route_weights[target.num_routes] = params.weights[row * params.top_k + k];
      ++target.num_routes;
      target.route_offsets[target.num_rows] = target.num_routes;
    }
  }
  return Status::ok();
}

}  // namespace fastfd::kernels
