#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include "device/cuda_build.h"
#include "device/cuda_check.h"
#include "device/cuda_driver.h"
#include "fastfd/device/cuda.h"

namespace fastfd::device {
namespace {

std::string version_text(int version) {
  return fmt::format("{}.{}", version / 1000, version % 1000 / 10);
}

Status unavailable(std::string message) { return {StatusCode::kUnavailable, std::move(message)}; }

/// cudaGetDeviceCount's answers, told apart by what a person would do about them.
Status explain(cudaError_t error) {
  int driver_version = 0;
  cudaDriverGetVersion(&driver_version);
  if (driver_version == 0) {
    return unavailable(
        "no NVIDIA driver on this machine (libcuda.so.1 is not there); install driver 580 or "
        "newer, or use device: cpu");
  }
  if (error == cudaErrorInsufficientDriver) {
    return unavailable(
        fmt::format("the NVIDIA driver is too old: it knows CUDA {}, this build needs {}; install "
                    "driver 580 or "
                    "newer, or use device: cpu",
                    version_text(driver_version), version_text(CUDART_VERSION)));
  }
  if (error == cudaErrorNoDevice) {
    return unavailable(
        "the NVIDIA driver shows no GPU; compare nvidia-smi with CUDA_VISIBLE_DEVICES, or use "
        "device: cpu");
  }
  return unavailable(
      fmt::format("CUDA can't be used: {} ({}); look at nvidia-smi, or use device: cpu",
                  cudaGetErrorString(error), cudaGetErrorName(error)));
}

bool contexts_share_mps(std::uint32_t index) {
  const CudaDriver& driver = cuda_driver();
  CUdevice device{};
  require(driver.device_get(&device, static_cast<int>(index)), "cuDeviceGet");
  int enabled = 0;
  require(driver.device_get_attribute(&enabled, CU_DEVICE_ATTRIBUTE_MPS_ENABLED, device),
          "cuDeviceGetAttribute");
  return enabled != 0;
}

}  // namespace

Status cuda_availability() {
  int num_devices = 0;
  const cudaError_t error = cudaGetDeviceCount(&num_devices);
  if (error != cudaSuccess) {
    cudaGetLastError();  // not sticky, but the next check would find it
    return explain(error);
  }
  return num_devices == 0 ? explain(cudaErrorNoDevice) : Status::ok();
}

CudaDevice CudaDevice::open(std::uint32_t index) {
  if (const Status status = cuda_availability(); !status) {
    throw DeviceError(fmt::format("cuda:{}: {}", index, status.message()));
  }
  int num_devices = 0;
  require(cudaGetDeviceCount(&num_devices), "cudaGetDeviceCount");
  if (index >= static_cast<std::uint32_t>(num_devices)) {
    throw DeviceError(
        fmt::format("cuda:{} is not there; this process sees {} GPU{}, cuda:0{}", index,
                    num_devices, num_devices == 1 ? "" : "s",
                    num_devices == 1 ? "" : fmt::format(" to cuda:{}", num_devices - 1)));
  }
  cudaDeviceProp properties{};
  require(cudaGetDeviceProperties(&properties, static_cast<int>(index)), "cudaGetDeviceProperties");
  CudaDevice device;
  device.index_ = index;
  device.name_ = properties.name;
  device.num_sms_ = static_cast<std::uint32_t>(properties.multiProcessorCount);
  device.compute_major_ = static_cast<std::uint32_t>(properties.major);
  device.compute_minor_ = static_cast<std::uint32_t>(properties.minor);
  if (!architectures_run_on(FASTFD_CUDA_ARCHITECTURES, device.compute_major_,
                            device.compute_minor_)) {
    throw DeviceError(fmt::format(
        "{} has compute capability {}.{}, this build has kernels for {}; configure with "
        "-DCMAKE_CUDA_ARCHITECTURES={}{}",
        device.to_string(), device.compute_major_, device.compute_minor_, FASTFD_CUDA_ARCHITECTURES,
        device.compute_major_, device.compute_minor_));
  }
  if (const auto& driver = find_cuda_driver(); !driver) {
    throw DeviceError(fmt::format("{}: {}", device.to_string(), driver.status().message()));
  }
  device.uses_mps_ = contexts_share_mps(index);
  require(cudaInitDevice(static_cast<int>(index), 0, 0), "cudaInitDevice");
  require(cudaSetDevice(static_cast<int>(index)), "cudaSetDevice");
  return device;
}

Status CudaDevice::make_current() const {
  return to_status(cudaSetDevice(static_cast<int>(index_)), "cudaSetDevice");
}

Result<DeviceMemory> CudaDevice::memory() const {
  std::size_t free_bytes = 0;
  std::size_t total_bytes = 0;
  if (Status status = to_status(cudaMemGetInfo(&free_bytes, &total_bytes), "cudaMemGetInfo");
      !status) {
    return status;
  }
  return DeviceMemory{free_bytes, total_bytes};
}

Status CudaDevice::synchronize() const {
  return to_status(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
}

std::string CudaDevice::to_string() const {
  return fmt::format("cuda:{} ({}, {} SMs)", index_, name_, num_sms_);
}

}  // namespace fastfd::device
