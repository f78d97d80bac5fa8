#pragma once

/// The driver's functions that CUDA's run-time library does not wrap, looked up through it: nothing
/// links libcuda, so a program starts where there is none.

#include <cuda.h>

#include "fastfd/core/status.h"

namespace fastfd::device {

struct CudaDriver {
  decltype(&cuGetErrorString) get_error_string = nullptr;
  decltype(&cuGetErrorName) get_error_name = nullptr;
  decltype(&cuDeviceGet) device_get = nullptr;
  decltype(&cuDeviceGetAttribute) device_get_attribute = nullptr;
  // Windows
  decltype(&cuMemGetAllocationGranularity) mem_get_allocation_granularity = nullptr;
  decltype(&cuMemCreate) mem_create = nullptr;
  decltype(&cuMemRelease) mem_release = nullptr;
  decltype(&cuMemExportToShareableHandle) mem_export_to_shareable_handle = nullptr;
  decltype(&cuMemImportFromShareableHandle) mem_import_from_shareable_handle = nullptr;
  decltype(&cuMemGetAllocationPropertiesFromHandle) mem_get_allocation_properties = nullptr;
  decltype(&cuMemAddressReserve) mem_address_reserve = nullptr;
  decltype(&cuMemAddressFree) mem_address_free = nullptr;
  decltype(&cuMemMap) mem_map = nullptr;
  decltype(&cuMemUnmap) mem_unmap = nullptr;
  decltype(&cuMemSetAccess) mem_set_access = nullptr;
  // Green contexts
  decltype(&cuDeviceGetDevResource) device_get_dev_resource = nullptr;
  decltype(&cuDevSmResourceSplitByCount) dev_sm_resource_split_by_count = nullptr;
  decltype(&cuDevResourceGenerateDesc) dev_resource_generate_desc = nullptr;
  decltype(&cuGreenCtxCreate) green_ctx_create = nullptr;
  decltype(&cuGreenCtxDestroy) green_ctx_destroy = nullptr;
  decltype(&cuGreenCtxStreamCreate) green_ctx_stream_create = nullptr;
};

/// Looked up once. kUnavailable if the driver is absent or lacks one. Thread-safe.
const Result<CudaDriver>& find_cuda_driver();

/// For calls after CudaDevice::open has gone well, which has looked all of them up.
const CudaDriver& cuda_driver();

}  // namespace fastfd::device
