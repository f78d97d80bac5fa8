#pragma once

/// The wire layouts of a WindowShape: where everything lies in the window of a pair.

#include "fastfd/transport/port.h"
#include "kernels/layout/row.h"
#include "kernels/layout/window.h"

namespace fastfd::transport {

inline layout::DispatchLayout dispatch_layout(const WindowShape& shape) {
  return layout::DispatchLayout::make(
      {shape.max_lane_rows, layout::RowLayout{shape.hidden_dim, shape.dispatch_dtype}.row_bytes(),
       shape.max_routes_per_row});
}

inline layout::CombineLayout combine_layout(const WindowShape& shape) {
  return layout::CombineLayout::make(
      {shape.max_lane_rows, layout::RowLayout{shape.hidden_dim, shape.combine_dtype}.row_bytes(),
       /*max_routes_per_row=*/0});
}

}  // namespace fastfd::transport
