#pragma once

/// Arithmetic behind PROTOCOL 5's rule that waiting kernels must never fill the SMs which the
/// kernels they wait for need.

#include <cstdint>

namespace fastfd::kernels::cuda {

/// What one CTA of a kernel takes of an SM.
struct KernelFootprint {
  std::uint32_t num_threads = 0;
  std::uint32_t registers_per_thread = 0;
  std::uint32_t shared_bytes = 0;  ///< static and dynamic
  std::uint32_t cluster_size = 1;  ///< CTAs that must be resident together
};

/// What one SM has.
struct SmLimits {
  std::uint32_t num_threads = 0;
  std::uint32_t num_registers = 0;
  std::uint32_t shared_bytes = 0;
  std::uint32_t reserved_shared_bytes = 0;  ///< taken by the driver for every CTA
};

/// True if a full cluster of `work` always finds room on a partition of `num_sms` SMs where
/// `num_waiting` CTAs of `waiting` are resident, wherever these were placed: either all of them
/// together leave room for a CTA on one SM, or enough SMs have none of them.
constexpr bool leaves_room(const KernelFootprint& waiting, std::uint32_t num_waiting,
                           const KernelFootprint& work, std::uint32_t num_sms,
                           const SmLimits& limits) {
  constexpr std::uint32_t kWarpThreads = 32;
  constexpr std::uint32_t kRegisterUnit = 256;  // registers are given to a warp in such pieces
  const auto warps = [](const KernelFootprint& kernel) {
    return (kernel.num_threads + kWarpThreads - 1) / kWarpThreads;
  };
  const auto registers = [&](const KernelFootprint& kernel) {
    const std::uint32_t of_warp = kernel.registers_per_thread * kWarpThreads;
    return warps(kernel) * ((of_warp + kRegisterUnit - 1) / kRegisterUnit * kRegisterUnit);
  };
  const bool fits_beside =
      num_waiting * warps(waiting) + warps(work) <= limits.num_threads / kWarpThreads &&
      num_waiting * registers(waiting) + registers(work) <= limits.num_registers &&
      num_waiting * (waiting.shared_bytes + limits.reserved_shared_bytes) + work.shared_bytes +
              limits.reserved_shared_bytes <=
          limits.shared_bytes;
  if (fits_beside) {
    return num_sms > 0;
  }
  // SMs of a cluster must be neighbours, so one waiting CTA may spoil a whole group.
  return num_sms >= work.cluster_size * (num_waiting + 1);
}

}  // namespace fastfd::kernels::cuda
