#pragma once

/// Arithmetic and checks on a WindowShape: what the handshake compares and what start-up prints.

#include <cstddef>
#include <cstdint>
#include <string>

#include "fastfd/core/status.h"
#include "fastfd/transport/port.h"

namespace fastfd::transport {

/// kInvalidArgument naming the field if no window can have this shape: a zero dimension, more than
/// 2^40 bytes a window, combines in float8_e4m3, or dispatches in it with a hidden_dim that is not
/// a multiple of 128, the values that share a scale.
Status validate(const WindowShape& shape);

/// Fields in which two shapes differ, both values named: "max_lane_rows is 512 here and 256 there".
/// Empty if they are equal.
std::string describe_difference(const WindowShape& here, const WindowShape& there);

/// Memory of the data plane, in bytes. Windows are backed page by page as they are first touched:
/// these are upper bounds, reached by the longest lane seen.
struct WindowBytes {
  std::size_t dispatch_window = 0;       ///< one pair's, owned by the FFN server
  std::size_t combine_window = 0;        ///< one pair's, owned by the attention server
  std::size_t per_attention_server = 0;  ///< what one attention server owns: combine windows + bell
  std::size_t per_ffn_server = 0;        ///< what one FFN server owns: dispatch windows + bell
  std::size_t cluster = 0;               ///< all servers of both roles
};

/// For `num_attention` x `num_ffn` servers and one epoch; while an old epoch's port is alive its
/// windows count again. Requires a valid shape.
WindowBytes window_bytes(const WindowShape& shape, std::uint32_t num_attention,
                         std::uint32_t num_ffn);

}  // namespace fastfd::transport
