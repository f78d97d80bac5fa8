#pragma once

/// Parts of a GPU's SMs (green contexts), and whether waiting kernels leave room on them.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "fastfd/core/status.h"
#include "fastfd/device/cuda.h"

namespace fastfd::device {

/// How a GPU hands out its SMs: groups of neighbours, and a remainder that fills no group.
struct SmGroups {
  std::uint32_t group_sms = 8;
  std::uint32_t num_groups = 0;
  std::uint32_t remainder_sms = 0;

  std::uint32_t num_sms() const { return group_sms * num_groups + remainder_sms; }
};

/// Groups [begin_group, end_group), and the remainder if `with_remainder`.
struct SmRange {
  std::uint32_t begin_group = 0;
  std::uint32_t end_group = 0;
  bool with_remainder = false;

  std::uint32_t num_sms(const SmGroups& groups) const {
    return (end_group - begin_group) * groups.group_sms +
           (with_remainder ? groups.remainder_sms : 0);
  }
  friend bool operator==(const SmRange&, const SmRange&) = default;
};

/// Disjoint ranges, one a share, in order; every border is rounded to a whole group, and the last
/// share takes the remainder if they sum to 1. Servers of one GPU compute the same split and each
/// takes its own part. Throws DeviceError if a share is not in (0, 1], if they sum to more than 1,
/// or if one gets no group.
std::vector<SmRange> plan_sm_split(const SmGroups& groups, std::span<const double> shares);

/// Some SMs of a GPU: kernels on its streams run on these only. A partition isolates SMs alone;
/// memory bandwidth, L2 and hardware queues stay shared. Under MPS with an active-thread percentage
/// the driver may give more SMs than asked.
class SmPartition {
 public:
  /// Part `index` of the split of `device` by `shares`. Throws DeviceError.
  static SmPartition create(const CudaDevice& device, std::span<const double> shares,
                            std::size_t index);

  /// What the hardware rounded the share to.
  std::uint32_t num_sms() const { return num_sms_; }
  /// Throws DeviceError. The stream keeps the partition alive.
  DeviceStream make_stream(StreamPriority priority = kNormalPriority) const;

 private:
  SmPartition() = default;
  std::shared_ptr<void> context_;
  std::uint32_t num_sms_ = 0;
};

/// What one SM has for thread blocks. Defaults: compute capability 9.0.
struct SmLimits {
  std::uint32_t max_threads = 2048;
  std::uint32_t max_ctas = 32;
  std::uint32_t registers = 65536;
  std::size_t shared_bytes = 233472;
  std::size_t reserved_shared_bytes = 1024;  ///< of every thread block
};

/// What one thread block of a kernel takes.
struct CtaFootprint {
  std::string kernel;
  std::uint32_t num_threads = 0;
  std::uint32_t registers_per_thread = 0;
  std::size_t shared_bytes = 0;    ///< static and dynamic
  std::uint32_t cluster_size = 1;  ///< thread blocks that must run at once, on neighbouring SMs
  friend bool operator==(const CtaFootprint&, const CtaFootprint&) = default;
};

struct WaitingCtas {
  CtaFootprint footprint;
  std::uint32_t num_ctas = 0;  ///< that may wait at once: all lanes, all graphs
};

/// Thread blocks of one kernel that an SM holds at once.
std::uint32_t ctas_per_sm(const SmLimits& sm, const CtaFootprint& footprint);

/// OK if, wherever the waiting blocks lie on the `num_sms` SMs, some SM has room for a block of
/// each of the working kernels: then what they wait for is produced (PROTOCOL 5). Else
/// kInvalidArgument with the arithmetic. Several waiting kernels count as the largest of them.
/// A cluster is kept out if every group of neighbouring SMs has one without room. Waiting kernels
/// prefer the largest shared-memory carveout,
/// because an SM does not change it under a resident block.
Status check_residency(const SmLimits& sm, std::uint32_t num_sms,
                       std::span<const WaitingCtas> waiting, std::span<const CtaFootprint> working);

/// Throws DeviceError.
SmLimits sm_limits(const CudaDevice& device);

/// `kernel` is a __global__ function's address. Throws DeviceError.
CtaFootprint cta_footprint(const CudaDevice& device, const void* kernel, std::string name,
                           std::uint32_t num_threads, std::size_t dynamic_shared_bytes);

}  // namespace fastfd::device
