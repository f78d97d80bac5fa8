#pragma once

/// Arithmetic behind PROTOCOL 5's rule that waiting kernels must never fill the SMs which the
/// kernels they wait for need.

#include <algorithm>
#include <cstdint>

namespace fastfd::kernels::cuda {

/// What one CTA of a kernel takes of an SM.
struct KernelFootprint {
  std::uint32_t num_threads = 0;
  std::uint32_t registers_per_thread = 0;
  std::uint32_t shared_bytes = 0;  ///< static and dynamic
  std::uint32_t cluster_size = 1;  ///< CTAs that must be resident together
  friend bool operator==(const KernelFootprint&, const KernelFootprint&) = default;
};

/// What one SM has.
struct SmLimits {
  std::uint32_t num_threads = 0;
  std::uint32_t num_registers = 0;
  std::uint32_t shared_bytes = 0;
  std::uint32_t reserved_shared_bytes = 0;  ///< taken by the driver for every CTA
};

/// CTAs of `waiting` beside which an SM still has room for a CTA of `work`; -1: for none, not even
/// alone.
constexpr std::int64_t waiting_beside(const KernelFootprint& waiting, const KernelFootprint& work,
                                      const SmLimits& limits) {
  constexpr std::int64_t kWarpThreads = 32;
  constexpr std::int64_t kRegisterUnit = 256;  // registers are given to a warp in such pieces
  const auto warps = [](const KernelFootprint& kernel) {
    return (kernel.num_threads + kWarpThreads - 1) / kWarpThreads;
  };
  const auto registers = [&](const KernelFootprint& kernel) {
    const std::int64_t of_warp = kernel.registers_per_thread * kWarpThreads;
    return warps(kernel) * ((of_warp + kRegisterUnit - 1) / kRegisterUnit * kRegisterUnit);
  };
  const auto shared = [&](const KernelFootprint& kernel) {
    return std::int64_t{kernel.shared_bytes} + limits.reserved_shared_bytes;
  };
  const std::int64_t left_warps = limits.num_threads / kWarpThreads - warps(work);
  const std::int64_t left_registers = limits.num_registers - registers(work);
  const std::int64_t left_shared = limits.shared_bytes - shared(work);
  if (left_warps < 0 || left_registers < 0 || left_shared < 0) {
    return -1;
  }
  return std::min({left_warps / std::max<std::int64_t>(warps(waiting), 1),
                   left_registers / std::max<std::int64_t>(registers(waiting), 1),
                   left_shared / std::max<std::int64_t>(shared(waiting), 1)});
}

/// True if a full cluster of `work` always finds room on a partition of `num_sms` SMs where
/// `num_waiting` CTAs of `waiting` are resident, wherever these were placed. SMs of a cluster are
/// neighbours: to keep it out, every group of neighbours must have an SM with more waiting CTAs
/// than it bears.
constexpr bool leaves_room(const KernelFootprint& waiting, std::uint32_t num_waiting,
                           const KernelFootprint& work, std::uint32_t num_sms,
                           const SmLimits& limits) {
  const std::int64_t beside = waiting_beside(waiting, work, limits);
  const std::int64_t num_groups = num_sms / std::max(work.cluster_size, 1U);
  return beside >= 0 && num_waiting < (beside + 1) * num_groups;
}

}  // namespace fastfd::kernels::cuda
