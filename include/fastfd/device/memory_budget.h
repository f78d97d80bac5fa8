#pragma once

#include <cstdint>
#include <string>

#include "fastfd/device/cuda.h"

namespace fastfd::device {

/// What one server's part of a GPU's memory is spent on. Everything but the KV pool is known before
/// it is allocated; the pool takes what is left, up to max_pages.
struct MemoryDemand {
  double fraction = 0.9;  ///< of the GPU's memory that this server may use: `gpu_memory_fraction`
  std::uint64_t weights_bytes = 0;
  std::uint64_t workspace_bytes = 0;
  std::uint64_t windows_bytes = 0;
  std::uint64_t states_bytes = 0;    ///< recurrent state of all slots
  std::uint64_t bytes_per_page = 0;  ///< KV of one page over all layers; 0: a server without a pool
  std::uint64_t min_pages = 1;       ///< that hold one sequence of the longest length
  /// More are of no use. Equal to min_pages: exactly so many were asked for.
  std::uint64_t max_pages = ~std::uint64_t{0};
};

struct MemoryBudget {
  std::uint64_t budget_bytes = 0;  ///< fraction x total
  std::uint64_t num_pages = 0;
  std::uint64_t kv_bytes = 0;
  std::string arithmetic;  ///< "0.90 x 139.8 GiB = ... ; weights ... ; KV ...", for the log
};

/// `memory` is read after the process has its context and before it allocates. Throws DeviceError
/// with the arithmetic if the budget is not free, or if it doesn't hold the demand.
MemoryBudget plan_memory(const DeviceMemory& memory, const MemoryDemand& demand);

}  // namespace fastfd::device
