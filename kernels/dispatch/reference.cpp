#include <cstring>

#include "kernels/dispatch/op.h"

namespace fastfd::kernels {
namespace {

void copy_row(const DispatchParams& params, std::int64_t row, DispatchTarget& target) {
  for (std::int64_t i = 0; i < params.hidden_dim; ++i) {
    const float value = params.hidden[row * params.hidden_dim + i];
    const auto at = static_cast<std::size_t>(target.num_rows * params.hidden_dim + i);
    if (params.dtype == DType::kFloat32) {
      std::memcpy(target.rows + at * sizeof(float), &value, sizeof(float));
    } else {
      const bf16 rounded = bf16::from_float(value);
      std::memcpy(target.rows + at * sizeof(bf16), &rounded, sizeof(bf16));
    }
  }
}

}  // namespace

void reference_dispatch(const DispatchParams& params) {
  for (std::size_t rank = 0; rank < params.targets.size(); ++rank) {
    DispatchTarget& target = params.targets[rank];
    target.num_rows = 0;
    target.num_routes = 0;
    target.route_offsets[0] = 0;
    for (std::int64_t row = 0; row < params.num_rows; ++row) {
      const std::uint32_t first_route = target.num_routes;
      for (std::int64_t k = row * params.top_k; k < (row + 1) * params.top_k; ++k) {
        const auto to = params.placement->target(static_cast<std::uint32_t>(params.experts[k]),
                                                 params.attention_rank);
        if (to.ffn_rank == rank) {
          target.route_experts[target.num_routes] = to.local_expert;
          target.route_weights[target.num_routes] = params.weights[k];
          ++target.num_routes;
        }
      }
      std::int32_t& index =
          params.row_index[static_cast<std::int64_t>(rank) * params.num_rows + row];
      index = -1;
      if (target.num_routes > first_route) {
        copy_row(params, row, target);
        index = static_cast<std::int32_t>(target.num_rows++);
        target.route_offsets[target.num_rows] = target.num_routes;
      }
    }
  }
}

}  // namespace fastfd::kernels
