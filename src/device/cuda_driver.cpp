#include "device/cuda_driver.h"

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include "device/cuda_check.h"
#include "fastfd/core/check.h"
#include "fastfd/device/cuda.h"

namespace fastfd::device {
namespace {

/// The signatures are those of the headers this is compiled with, whatever the driver knows.
constexpr unsigned kSignatures = CUDA_VERSION;

template <typename Function>
bool find(const char* symbol, Function& function, std::string& missing) {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult query{};
  const cudaError_t error =
      cudaGetDriverEntryPointByVersion(symbol, &found, kSignatures, cudaEnableDefault, &query);
  if (error != cudaSuccess || query != cudaDriverEntryPointSuccess || found == nullptr) {
    missing = symbol;
    return false;
  }
  function = reinterpret_cast<Function>(found);
  return true;
}

Result<CudaDriver> look_up() {
  CudaDriver driver;
  std::string missing;
  const bool complete =
      find("cuGetErrorString", driver.get_error_string, missing) &&
      find("cuGetErrorName", driver.get_error_name, missing) &&
      find("cuDeviceGet", driver.device_get, missing) &&
      find("cuDeviceGetAttribute", driver.device_get_attribute, missing) &&
      find("cuMemGetAllocationGranularity", driver.mem_get_allocation_granularity, missing) &&
      find("cuMemCreate", driver.mem_create, missing) &&
      find("cuMemRelease", driver.mem_release, missing) &&
      find("cuMemExportToShareableHandle", driver.mem_export_to_shareable_handle, missing) &&
      find("cuMemImportFromShareableHandle", driver.mem_import_from_shareable_handle, missing) &&
      find("cuMemGetAllocationPropertiesFromHandle", driver.mem_get_allocation_properties,
           missing) &&
      find("cuMemAddressReserve", driver.mem_address_reserve, missing) &&
      find("cuMemAddressFree", driver.mem_address_free, missing) &&
      find("cuMemMap", driver.mem_map, missing) && find("cuMemUnmap", driver.mem_unmap, missing) &&
      find("cuMemSetAccess", driver.mem_set_access, missing) &&
      find("cuDeviceGetDevResource", driver.device_get_dev_resource, missing) &&
      find("cuDevSmResourceSplitByCount", driver.dev_sm_resource_split_by_count, missing) &&
      find("cuDevResourceGenerateDesc", driver.dev_resource_generate_desc, missing) &&
      find("cuGreenCtxCreate", driver.green_ctx_create, missing) &&
      find("cuGreenCtxDestroy", driver.green_ctx_destroy, missing) &&
      find("cuGreenCtxStreamCreate", driver.green_ctx_stream_create, missing);
  if (!complete) {
    return Status(StatusCode::kUnavailable,
                  fmt::format("the NVIDIA driver has no {}; install driver 580 or newer", missing));
  }
  return driver;
}

}  // namespace

const Result<CudaDriver>& find_cuda_driver() {
  static const Result<CudaDriver> driver = look_up();
  return driver;
}

const CudaDriver& cuda_driver() {
  const auto& driver = find_cuda_driver();
  check(driver.is_ok(), "the driver is used before a device was opened");
  return *driver;
}

Status to_status(cudaError_t error, const char* what) {
  if (error == cudaSuccess) {
    return Status::ok();
  }
  const StatusCode code =
      error == cudaErrorMemoryAllocation ? StatusCode::kResourceExhausted : StatusCode::kInternal;
  return {code,
          fmt::format("{}: {} ({})", what, cudaGetErrorString(error), cudaGetErrorName(error))};
}

Status to_status(CUresult result, const char* what) {
  if (result == CUDA_SUCCESS) {
    return Status::ok();
  }
  const char* text = "unknown error";
  const char* name = "?";
  cuda_driver().get_error_string(result, &text);
  cuda_driver().get_error_name(result, &name);
  const StatusCode code =
      result == CUDA_ERROR_OUT_OF_MEMORY ? StatusCode::kResourceExhausted : StatusCode::kInternal;
  return {code, fmt::format("{}: {} ({})", what, text, name)};
}

void require(cudaError_t error, const char* what) {
  if (error != cudaSuccess) {
    throw DeviceError(to_status(error, what).message());
  }
}

void require(CUresult result, const char* what) {
  if (result != CUDA_SUCCESS) {
    throw DeviceError(to_status(result, what).message());
  }
}

}  // namespace fastfd::device
