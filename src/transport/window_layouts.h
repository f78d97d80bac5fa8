#pragma once

#include <unistd.h>

#include <cstddef>

#include "fastfd/transport/port.h"
#include "kernels/layout/row.h"
#include "kernels/layout/window.h"
#include "transport/doorbell.h"

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

/// Bytes that a mapping of `num_bytes` takes.
inline std::size_t round_to_pages(std::size_t num_bytes) {
  const auto page_bytes = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  return (num_bytes + page_bytes - 1) / page_bytes * page_bytes;
}

inline std::size_t doorbell_bytes() { return round_to_pages(sizeof(DoorbellPage)); }

}  // namespace fastfd::transport
