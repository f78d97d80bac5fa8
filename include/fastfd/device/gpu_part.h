#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "fastfd/core/ids.h"
#include "fastfd/device/cuda.h"
#include "fastfd/device/sm_partition.h"

namespace fastfd::device {

/// Lanes take turns in a pool, the lower first: lanes that share the SMs would finish at the same
/// time, be at the other pool at the same time, and hide nothing of each other.
constexpr StreamPriority lane_priority(LaneId lane) { return {kMaxLanes - lane}; }

/// Where a server's kernels run: a GPU, or some of its SMs. A value; streams made from it keep the
/// partition alive.
class GpuPart {
 public:
  /// All of it, shared by `num_servers`.
  explicit GpuPart(CudaDevice device, std::uint32_t num_servers = 1)
      : device_(std::move(device)), num_servers_(num_servers) {}
  /// Part `index` of the split of the device's SMs by `shares`. Throws DeviceError.
  GpuPart(CudaDevice device, std::span<const double> shares, std::size_t index)
      : device_(std::move(device)), partition_(SmPartition::create(device_, shares, index)) {}

  const CudaDevice& device() const { return device_; }
  /// Whose kernels run on these SMs.
  std::uint32_t num_servers() const { return num_servers_; }
  bool is_whole() const { return !partition_.has_value(); }
  std::uint32_t num_sms() const { return partition_ ? partition_->num_sms() : device_.num_sms(); }
  /// Throws DeviceError.
  DeviceStream make_stream(StreamPriority priority = kNormalPriority) const {
    return partition_ ? partition_->make_stream(priority) : DeviceStream(device_, priority);
  }

 private:
  CudaDevice device_;
  std::uint32_t num_servers_ = 1;
  std::optional<SmPartition> partition_;
};

}  // namespace fastfd::device
