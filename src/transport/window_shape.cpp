#include "fastfd/transport/window_shape.h"

#include <fmt/format.h>

#include <vector>

#include "kernels/layout/row.h"
#include "transport/window_layouts.h"

namespace fastfd::transport {
namespace {

constexpr std::uint32_t kMaxRows = 1U << 20;
constexpr std::uint32_t kMaxHiddenDim = 1U << 17;
constexpr std::uint32_t kMaxRoutes = 1U << 10;
constexpr std::uint32_t kMaxLayers = 1U << 12;
constexpr std::size_t kMaxWindowBytes = std::size_t{1} << 40;

Status check_range(const char* name, std::uint32_t value, std::uint32_t limit) {
  if (value >= 1 && value <= limit) {
    return Status::ok();
  }
  return Status(StatusCode::kInvalidArgument,
                fmt::format("window shape: {} is {}, must be 1 to {}", name, value, limit));
}

/// Only dispatches are quantised, and the scales of a row belong to whole groups of its values.
Status check_dtypes(const WindowShape& shape) {
  if (shape.combine_dtype == DType::kFloat8E4M3) {
    return Status(StatusCode::kInvalidArgument,
                  fmt::format("window shape: combine_dtype is {}, must be float32, bfloat16 or "
                              "float16",
                              to_string(shape.combine_dtype)));
  }
  if (shape.dispatch_dtype == DType::kFloat8E4M3 && shape.hidden_dim % layout::kScaleGroup != 0) {
    return Status(
        StatusCode::kInvalidArgument,
        fmt::format("window shape: dispatch_dtype is {}, which has a scale every {} "
                    "values and hidden_dim is {}; use bfloat16",
                    to_string(shape.dispatch_dtype), layout::kScaleGroup, shape.hidden_dim));
  }
  return Status::ok();
}

}  // namespace

Status validate(const WindowShape& shape) {
  for (const Status& status :
       {check_range("max_lane_rows", shape.max_lane_rows, kMaxRows),
        check_range("hidden_dim", shape.hidden_dim, kMaxHiddenDim),
        check_range("max_routes_per_row", shape.max_routes_per_row, kMaxRoutes),
        check_range("num_layers", shape.num_layers, kMaxLayers), check_dtypes(shape)}) {
    if (!status) {
      return status;
    }
  }
  const std::size_t num_bytes = dispatch_layout(shape).bytes() + combine_layout(shape).bytes();
  if (num_bytes > kMaxWindowBytes) {
    return Status(StatusCode::kInvalidArgument,
                  fmt::format("window shape: a pair's windows take {} bytes, at most {} are "
                              "possible; lower max_lane_rows ({})",
                              num_bytes, kMaxWindowBytes, shape.max_lane_rows));
  }
  return Status::ok();
}

std::string describe_difference(const WindowShape& here, const WindowShape& there) {
  std::vector<std::string> parts;
  const auto compare = [&parts](const char* name, const auto& ours, const auto& theirs) {
    if (ours != theirs) {
      parts.push_back(fmt::format("{} is {} here and {} there", name, ours, theirs));
    }
  };
  compare("max_lane_rows", here.max_lane_rows, there.max_lane_rows);
  compare("hidden_dim", here.hidden_dim, there.hidden_dim);
  compare("max_routes_per_row", here.max_routes_per_row, there.max_routes_per_row);
  compare("num_layers", here.num_layers, there.num_layers);
  compare("dispatch_dtype", std::string(to_string(here.dispatch_dtype)),
          std::string(to_string(there.dispatch_dtype)));
  compare("combine_dtype", std::string(to_string(here.combine_dtype)),
          std::string(to_string(there.combine_dtype)));
  return fmt::format("{}", fmt::join(parts, ", "));
}

WindowBytes window_bytes(const WindowShape& shape, std::uint32_t num_attention,
                         std::uint32_t num_ffn) {
  WindowBytes bytes;
  bytes.dispatch_window = round_to_pages(dispatch_layout(shape).bytes());
  bytes.combine_window = round_to_pages(combine_layout(shape).bytes());
  bytes.per_attention_server = num_ffn * bytes.combine_window + doorbell_bytes();
  bytes.per_ffn_server = num_attention * bytes.dispatch_window + doorbell_bytes();
  bytes.cluster = num_attention * bytes.per_attention_server + num_ffn * bytes.per_ffn_server;
  return bytes;
}

}  // namespace fastfd::transport
