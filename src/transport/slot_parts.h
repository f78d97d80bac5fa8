#pragma once

/// Which bytes of a window a message of few rows takes, for transports that must be told. Both ends
/// work it out from the window's layout and the planned number of rows, never from the message.

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "kernels/layout/lane_control.h"
#include "kernels/layout/window.h"

namespace fastfd::transport {

/// A range of a window, from its start.
struct SlotPart {
  std::size_t offset = 0;
  std::size_t num_bytes = 0;
  friend bool operator==(const SlotPart&, const SlotPart&) = default;
};

/// The parts of one message, ascending and apart from each other.
class SlotParts {
 public:
  static constexpr std::size_t kMaxParts = 4;
  /// A gap up to this long travels along: it costs less than another operation.
  static constexpr std::size_t kLargestGap = 4096;

  const SlotPart* begin() const { return parts_.data(); }
  const SlotPart* end() const { return parts_.data() + count_; }
  std::size_t size() const { return count_; }

  void add(SlotPart part) {
    if (part.num_bytes == 0) {
      return;  // the routes of no rows
    }
    if (count_ > 0) {
      SlotPart& last = parts_[count_ - 1];
      if (part.offset - (last.offset + last.num_bytes) <= kLargestGap) {
        last.num_bytes = part.offset + part.num_bytes - last.offset;
        return;
      }
    }
    parts_[count_++] = part;
  }

 private:
  std::array<SlotPart, kMaxParts> parts_{};
  std::size_t count_ = 0;
};

/// Flag, header, rows, and their routes: each payload area from its start. `max_rows`: of the
/// message; more than the window's are as many as the window's.
inline SlotParts dispatch_parts(const layout::DispatchLayout& window, const layout::LaneHop& hop,
                                std::uint32_t max_rows) {
  const std::size_t rows = std::min(max_rows, window.dims.max_rows);
  const std::size_t routes = rows * window.dims.max_routes_per_row;
  const std::size_t slot = window.grid.slot_offset(hop.lane, hop.buffer());
  SlotParts parts;
  parts.add({slot, layout::DispatchLayout::rows_offset() + rows * window.dims.row_bytes});
  parts.add({slot + window.route_offsets_offset, (rows + 1) * sizeof(std::uint32_t)});
  parts.add({slot + window.route_experts_offset, routes * sizeof(std::uint32_t)});
  parts.add({slot + window.route_weights_offset, routes * sizeof(float)});
  return parts;
}

/// Flag, header and rows, which lie together.
inline SlotParts combine_parts(const layout::CombineLayout& window, const layout::LaneHop& hop,
                               std::uint32_t max_rows) {
  const std::size_t rows = std::min(max_rows, window.dims.max_rows);
  SlotParts parts;
  parts.add({window.grid.slot_offset(hop.lane, hop.buffer()),
             layout::CombineLayout::rows_offset() + rows * window.dims.row_bytes});
  return parts;
}

}  // namespace fastfd::transport
