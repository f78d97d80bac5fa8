#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <utility>

#include "device/cuda_check.h"
#include "device/cuda_driver.h"
#include "fastfd/device/sm_partition.h"

namespace fastfd::device {
namespace {

struct SmResources {
  SmGroups shape;
  std::vector<CUdevResource> groups;  // [shape.num_groups]
  CUdevResource remainder{};
};

CUdevice driver_device(const CudaDevice& device) {
  CUdevice result{};
  require(cuda_driver().device_get(&result, static_cast<int>(device.index())), "cuDeviceGet");
  return result;
}

/// One split into the smallest groups the hardware has: only parts of one split can be joined
/// again.
SmResources split_into_groups(const CudaDevice& device) {
  const CudaDriver& driver = cuda_driver();
  SmResources result;
  CUdevResource all{};
  require(driver.device_get_dev_resource(driver_device(device), &all, CU_DEV_RESOURCE_TYPE_SM),
          "asking for a GPU's SMs");
  const unsigned group_sms = std::max(1U, all.sm.minSmPartitionSize);
  unsigned num_groups = all.sm.smCount / group_sms;
  result.groups.resize(num_groups);
  require(driver.dev_sm_resource_split_by_count(result.groups.data(), &num_groups, &all,
                                                &result.remainder, 0, group_sms),
          "splitting a GPU's SMs");
  result.groups.resize(num_groups);
  if (num_groups == 0) {
    throw DeviceError(device.to_string() + ": its SMs can't be split; use sm_share: 1");
  }
  result.shape.group_sms = result.groups[0].sm.smCount;
  result.shape.num_groups = num_groups;
  result.shape.remainder_sms =
      result.remainder.type == CU_DEV_RESOURCE_TYPE_SM ? result.remainder.sm.smCount : 0;
  return result;
}

}  // namespace

SmPartition SmPartition::create(const CudaDevice& device, std::span<const double> shares,
                                std::size_t index) {
  if (const Status status = device.make_current(); !status) {
    throw DeviceError(status.message());
  }
  const CudaDriver& driver = cuda_driver();
  SmResources resources = split_into_groups(device);
  const SmRange range = plan_sm_split(resources.shape, shares).at(index);
  std::vector<CUdevResource> parts(resources.groups.begin() + range.begin_group,
                                   resources.groups.begin() + range.end_group);
  if (range.with_remainder && resources.shape.remainder_sms != 0) {
    parts.push_back(resources.remainder);
  }
  CUdevResourceDesc description{};
  require(driver.dev_resource_generate_desc(&description, parts.data(),
                                            static_cast<unsigned>(parts.size())),
          "joining groups of SMs");
  CUgreenCtx context{};
  require(driver.green_ctx_create(&context, description, driver_device(device),
                                  CU_GREEN_CTX_DEFAULT_STREAM),
          "creating a green context");
  SmPartition partition;
  partition.context_ = std::shared_ptr<void>(
      context, [](void* held) { cuda_driver().green_ctx_destroy(static_cast<CUgreenCtx>(held)); });
  partition.num_sms_ = range.num_sms(resources.shape);
  return partition;
}

DeviceStream SmPartition::make_stream(StreamPriority priority) const {
  CUstream handle = nullptr;
  require(cuda_driver().green_ctx_stream_create(&handle, static_cast<CUgreenCtx>(context_.get()),
                                                CU_STREAM_NON_BLOCKING, cuda_priority(priority)),
          "creating a stream of an SM partition");
  return {handle, context_};
}

SmLimits sm_limits(const CudaDevice& device) {
  cudaDeviceProp properties{};
  require(cudaGetDeviceProperties(&properties, static_cast<int>(device.index())),
          "cudaGetDeviceProperties");
  SmLimits limits;
  limits.max_threads = static_cast<std::uint32_t>(properties.maxThreadsPerMultiProcessor);
  limits.max_ctas = static_cast<std::uint32_t>(properties.maxBlocksPerMultiProcessor);
  limits.registers = static_cast<std::uint32_t>(properties.regsPerMultiprocessor);
  limits.shared_bytes = properties.sharedMemPerMultiprocessor;
  limits.reserved_shared_bytes = properties.reservedSharedMemPerBlock;
  return limits;
}

CtaFootprint cta_footprint(const CudaDevice& device, const void* kernel, std::string name,
                           std::uint32_t num_threads, std::size_t dynamic_shared_bytes) {
  if (const Status status = device.make_current(); !status) {
    throw DeviceError(status.message());
  }
  cudaFuncAttributes attributes{};
  require(cudaFuncGetAttributes(&attributes, kernel), "cudaFuncGetAttributes");
  CtaFootprint footprint;
  footprint.kernel = std::move(name);
  footprint.num_threads = num_threads;
  footprint.registers_per_thread = static_cast<std::uint32_t>(attributes.numRegs);
  footprint.shared_bytes = attributes.sharedSizeBytes + dynamic_shared_bytes;
  return footprint;
}

}  // namespace fastfd::device
