#pragma once

#include <unistd.h>

#include <cstddef>

#include "fastfd/transport/window_layout.h"
#include "transport/doorbell.h"

namespace fastfd::transport {

/// Bytes that a mapping of `num_bytes` takes.
inline std::size_t round_to_pages(std::size_t num_bytes) {
  const auto page_bytes = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  return (num_bytes + page_bytes - 1) / page_bytes * page_bytes;
}

inline std::size_t doorbell_bytes() { return round_to_pages(sizeof(DoorbellPage)); }

}  // namespace fastfd::transport
