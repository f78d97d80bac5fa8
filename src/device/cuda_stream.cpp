#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <utility>

#include "device/cuda_build.h"
#include "device/cuda_check.h"
#include "fastfd/device/cuda.h"

namespace fastfd::device {
namespace {

void make_current(const CudaDevice& device) {
  if (const Status status = device.make_current(); !status) {
    throw DeviceError(status.message());
  }
}

/// cudaErrorNotReady is an answer, not a failure.
Result<bool> has_run(cudaError_t error, const char* what) {
  if (error == cudaErrorNotReady) {
    return false;
  }
  if (Status status = to_status(error, what); !status) {
    return status;
  }
  return true;
}

cudaStream_t make_stream(const CudaDevice& device, StreamPriority priority) {
  make_current(device);
  cudaStream_t stream = nullptr;
  require(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, cuda_priority(priority)),
          "cudaStreamCreateWithPriority");
  return stream;
}

std::atomic<std::uint32_t> live_streams{0};

constexpr double kGiB = 1024.0 * 1024.0 * 1024.0;

}  // namespace

int cuda_priority(StreamPriority priority) {
  int lowest = 0;
  int highest = 0;
  require(cudaDeviceGetStreamPriorityRange(&lowest, &highest), "cudaDeviceGetStreamPriorityRange");
  const auto levels = static_cast<std::uint32_t>(lowest - highest);
  return lowest - static_cast<int>(std::min(priority.level, levels));
}

Status check_queues() {
  const std::uint32_t num_queues = num_hardware_queues();
  const std::uint32_t num_streams = live_streams.load(std::memory_order_relaxed);
  if (num_queues == 0 || num_streams <= num_queues) {
    return Status::ok();
  }
  return {
      StatusCode::kInvalidArgument,
      fmt::format("{} streams are more than the {} hardware queues of this process, and streams "
                  "that share one wait for each other's kernels; have fewer servers in one "
                  "process, or use processes (fastfd launch)",
                  num_streams, num_queues)};
}

DeviceStream::DeviceStream(CudaStream stream, std::shared_ptr<void> partition)
    : handle_(stream, Deleter{std::move(partition)}) {
  live_streams.fetch_add(1, std::memory_order_relaxed);
}

DeviceStream::DeviceStream(const CudaDevice& device, StreamPriority priority)
    : DeviceStream(make_stream(device, priority), nullptr) {}

void DeviceStream::Deleter::operator()(CUstream_st* stream) const {
  cudaStreamDestroy(stream);
  live_streams.fetch_sub(1, std::memory_order_relaxed);
}

Status DeviceStream::synchronize() const {
  return to_status(cudaStreamSynchronize(handle()), "waiting for a stream");
}

Result<bool> DeviceStream::is_idle() const {
  return has_run(cudaStreamQuery(handle()), "asking a stream");
}

Status DeviceStream::wait(const DeviceEvent& event) const {
  return to_status(cudaStreamWaitEvent(handle(), event.handle(), 0), "cudaStreamWaitEvent");
}

DeviceEvent::DeviceEvent(const CudaDevice& device, EventOptions options) {
  make_current(device);
  const unsigned flags =
      (options.timing ? 0 : cudaEventDisableTiming) | (options.sleeps ? cudaEventBlockingSync : 0);
  cudaEvent_t event = nullptr;
  require(cudaEventCreateWithFlags(&event, flags), "cudaEventCreateWithFlags");
  handle_.reset(event);
}

void DeviceEvent::Deleter::operator()(CUevent_st* event) const { cudaEventDestroy(event); }

Status DeviceEvent::record(CudaStream stream) const {
  return to_status(cudaEventRecord(handle(), stream), "cudaEventRecord");
}

Result<bool> DeviceEvent::has_passed() const {
  return has_run(cudaEventQuery(handle()), "asking an event");
}

Status DeviceEvent::synchronize() const {
  return to_status(cudaEventSynchronize(handle()), "waiting for an event");
}

Result<float> DeviceEvent::elapsed_ms(const DeviceEvent& start) const {
  float elapsed = 0.0F;
  if (Status status = to_status(cudaEventElapsedTime(&elapsed, start.handle(), handle()),
                                "cudaEventElapsedTime");
      !status) {
    return status;
  }
  return elapsed;
}

DeviceBuffer::DeviceBuffer(const CudaDevice& device, std::size_t num_bytes)
    : num_bytes_(num_bytes) {
  if (num_bytes == 0) {
    return;
  }
  make_current(device);
  void* memory = nullptr;
  if (const cudaError_t error = cudaMalloc(&memory, num_bytes); error != cudaSuccess) {
    cudaGetLastError();
    const auto free = device.memory();
    throw DeviceError(fmt::format(
        "{}: no {:.3f} GiB of device memory ({:.3f} of {:.3f} GiB are free): {}; lower "
        "gpu_memory_fraction, or end what else runs on this GPU",
        device.to_string(), static_cast<double>(num_bytes) / kGiB,
        free ? static_cast<double>(free->free_bytes) / kGiB : 0.0,
        free ? static_cast<double>(free->total_bytes) / kGiB : 0.0, cudaGetErrorString(error)));
  }
  data_.reset(static_cast<std::byte*>(memory));
}

void DeviceBuffer::Deleter::operator()(std::byte* memory) const { cudaFree(memory); }

PinnedBuffer::PinnedBuffer(const CudaDevice& device, std::size_t num_bytes)
    : num_bytes_(num_bytes) {
  if (num_bytes == 0) {
    return;
  }
  make_current(device);
  void* memory = nullptr;
  require(cudaHostAlloc(&memory, num_bytes, cudaHostAllocPortable | cudaHostAllocMapped),
          "allocating pinned host memory");
  std::memset(memory, 0, num_bytes);
  data_.reset(static_cast<std::byte*>(memory));
}

void PinnedBuffer::Deleter::operator()(std::byte* memory) const { cudaFreeHost(memory); }

Status copy_async(void* to, const void* from, std::size_t num_bytes, CudaStream stream) {
  return num_bytes == 0
             ? Status::ok()
             : to_status(cudaMemcpyAsync(to, from, num_bytes, cudaMemcpyDefault, stream), "a copy");
}

Status fill_async(void* to, std::uint8_t value, std::size_t num_bytes, CudaStream stream) {
  return num_bytes == 0 ? Status::ok()
                        : to_status(cudaMemsetAsync(to, value, num_bytes, stream), "a fill");
}

}  // namespace fastfd::device
