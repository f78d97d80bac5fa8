#pragma once

/// Receive windows: what one peer writes straight into another's memory. There is one dispatch
/// window for every (attention server, FFN server) pair, owned by the FFN server, and one combine
/// window the other way, owned by the attention server.
///
///   window = [lane 0 .. kMaxLanes-1][layer mod 2] of slots
///   slot   = | flag line | header | payload areas ... |      each aligned to 128 bytes
///
/// All numbers are little-endian as the host has them; both ends are of one build (the handshake
/// compares versions). Plain structs: the same code addresses a window in a kernel.

#include <cstddef>
#include <cstdint>

#include "fastfd/core/ids.h"
#include "kernels/layout/flag.h"
#include "kernels/layout/host_device.h"

namespace fastfd::layout {

inline constexpr std::uint32_t kBuffersPerLane = 2;
/// Two cache lines: what the adjacent-line prefetcher pulls together, and a GPU's L2 line.
inline constexpr std::size_t kPayloadAlignment = 128;

FASTFD_HOST_DEVICE constexpr std::size_t align_payload(std::size_t num_bytes) {
  return (num_bytes + kPayloadAlignment - 1) / kPayloadAlignment * kPayloadAlignment;
}

/// Alternates by layer and never by step, so a captured graph can keep its addresses.
FASTFD_HOST_DEVICE constexpr std::uint32_t buffer_of_layer(std::uint32_t layer) {
  return layer % kBuffersPerLane;
}

/// Alone in its line: the reader polls it while the writer fills the payload.
struct alignas(kPayloadAlignment) FlagLine {
  std::uint64_t value;
};

/// Written before the flag. The counts are the message; the rest says which hop it belongs to, for
/// checks and for people who look at a dump.
struct alignas(kPayloadAlignment) SlotHeader {
  std::uint32_t num_rows;
  std::uint32_t num_routes;  ///< dispatch only; 0 in a combine
  std::uint32_t epoch;
  std::uint32_t lane;
  std::uint64_t step;
  std::uint32_t layer;
};

/// The numbers that fix a window's layout.
struct WindowDims {
  std::uint32_t max_rows = 0;            ///< of one lane of one attention server
  std::uint32_t row_bytes = 0;           ///< hidden_dim elements of the wire dtype
  std::uint32_t max_routes_per_row = 0;  ///< dispatch only
};

/// Slot addressing shared by both windows.
struct SlotGrid {
  std::size_t slot_bytes = 0;

  FASTFD_HOST_DEVICE constexpr std::size_t bytes() const {
    return slot_bytes * kMaxLanes * kBuffersPerLane;
  }
  FASTFD_HOST_DEVICE constexpr std::size_t slot_offset(std::uint32_t lane,
                                                       std::uint32_t buffer) const {
    return (static_cast<std::size_t>(lane) * kBuffersPerLane + buffer) * slot_bytes;
  }
  FASTFD_HOST_DEVICE static constexpr std::size_t flag_offset() { return 0; }
  FASTFD_HOST_DEVICE static constexpr std::size_t header_offset() { return sizeof(FlagLine); }
  FASTFD_HOST_DEVICE static constexpr std::size_t payload_offset() {
    return sizeof(FlagLine) + sizeof(SlotHeader);
  }
};

/// Addresses of one dispatch slot. Row i's routes are route_offsets[i] .. route_offsets[i + 1] - 1.
struct DispatchSlot {
  std::uint64_t* flag;
  SlotHeader* header;
  std::byte* rows;               ///< [max_rows, row_bytes]
  std::uint32_t* route_offsets;  ///< [max_rows + 1]
  std::uint32_t* route_experts;  ///< [max_rows * max_routes_per_row]
  float* route_weights;          ///< same
};

/// Offsets below are from the start of a slot.
struct DispatchLayout {
  WindowDims dims;
  SlotGrid grid;
  std::size_t route_offsets_offset = 0;
  std::size_t route_experts_offset = 0;
  std::size_t route_weights_offset = 0;

  FASTFD_HOST_DEVICE static constexpr DispatchLayout make(WindowDims dims) {
    DispatchLayout layout;
    layout.dims = dims;
    const std::size_t max_rows = dims.max_rows;
    const std::size_t max_routes = max_rows * dims.max_routes_per_row;
    layout.route_offsets_offset =
        SlotGrid::payload_offset() + align_payload(max_rows * dims.row_bytes);
    layout.route_experts_offset =
        layout.route_offsets_offset + align_payload((max_rows + 1) * sizeof(std::uint32_t));
    layout.route_weights_offset =
        layout.route_experts_offset + align_payload(max_routes * sizeof(std::uint32_t));
    layout.grid.slot_bytes =
        layout.route_weights_offset + align_payload(max_routes * sizeof(float));
    return layout;
  }

  FASTFD_HOST_DEVICE constexpr std::size_t bytes() const { return grid.bytes(); }
  FASTFD_HOST_DEVICE static constexpr std::size_t rows_offset() {
    return SlotGrid::payload_offset();
  }

  /// `window` is aligned to kPayloadAlignment and has bytes() bytes.
  FASTFD_HOST_DEVICE DispatchSlot slot(std::byte* window, std::uint32_t lane,
                                       std::uint32_t buffer) const {
    std::byte* base = window + grid.slot_offset(lane, buffer);
    return {reinterpret_cast<std::uint64_t*>(base + SlotGrid::flag_offset()),
            reinterpret_cast<SlotHeader*>(base + SlotGrid::header_offset()),
            base + rows_offset(),
            reinterpret_cast<std::uint32_t*>(base + route_offsets_offset),
            reinterpret_cast<std::uint32_t*>(base + route_experts_offset),
            reinterpret_cast<float*>(base + route_weights_offset)};
  }
};

struct CombineSlot {
  std::uint64_t* flag;
  SlotHeader* header;
  std::byte* rows;  ///< [max_rows, row_bytes]
};

struct CombineLayout {
  WindowDims dims;
  SlotGrid grid;

  FASTFD_HOST_DEVICE static constexpr CombineLayout make(WindowDims dims) {
    CombineLayout layout;
    layout.dims = dims;
    layout.grid.slot_bytes =
        rows_offset() + align_payload(std::size_t{dims.max_rows} * dims.row_bytes);
    return layout;
  }

  FASTFD_HOST_DEVICE constexpr std::size_t bytes() const { return grid.bytes(); }
  FASTFD_HOST_DEVICE static constexpr std::size_t rows_offset() {
    return SlotGrid::payload_offset();
  }

  FASTFD_HOST_DEVICE CombineSlot slot(std::byte* window, std::uint32_t lane,
                                      std::uint32_t buffer) const {
    std::byte* base = window + grid.slot_offset(lane, buffer);
    return {reinterpret_cast<std::uint64_t*>(base + SlotGrid::flag_offset()),
            reinterpret_cast<SlotHeader*>(base + SlotGrid::header_offset()), base + rows_offset()};
  }
};

}  // namespace fastfd::layout
