// The symbols of device_cuda.cpp and its siblings in a build without CUDA. No object of these
// classes can be made, so members that need one only say what every other call says.
#include "fastfd/device/cuda.h"
#include "fastfd/device/cuda_window.h"
#include "fastfd/device/sm_partition.h"

namespace fastfd::device {
namespace {

Status absent() {
  return {
      StatusCode::kUnavailable,
      "this FastFD was built without CUDA; build it where the CUDA toolkit is (nvcc on the PATH, "
      "or -DCMAKE_CUDA_COMPILER=...), or use device: cpu"};
}

[[noreturn]] void throw_absent() { throw DeviceError(absent().message()); }

}  // namespace

Status cuda_availability() { return absent(); }

CudaDevice CudaDevice::open(std::uint32_t index) {
  throw DeviceError("cuda:" + std::to_string(index) + ": " + absent().message());
}
Status CudaDevice::make_current() const { return absent(); }
Result<DeviceMemory> CudaDevice::memory() const { return absent(); }
Status CudaDevice::synchronize() const { return absent(); }
std::string CudaDevice::to_string() const { return "cuda:" + std::to_string(index_); }

Status check_queues() { return Status::ok(); }
DeviceStream::DeviceStream(const CudaDevice&, StreamPriority) { throw_absent(); }
void DeviceStream::Deleter::operator()(CUstream_st*) const {}
Status DeviceStream::synchronize() const { return absent(); }
Result<bool> DeviceStream::is_idle() const { return absent(); }
Status DeviceStream::wait(const DeviceEvent&) const { return absent(); }

DeviceEvent::DeviceEvent(const CudaDevice&, EventOptions) { throw_absent(); }
void DeviceEvent::Deleter::operator()(CUevent_st*) const {}
Status DeviceEvent::record(CudaStream) const { return absent(); }
Result<bool> DeviceEvent::has_passed() const { return absent(); }
Status DeviceEvent::synchronize() const { return absent(); }
Result<float> DeviceEvent::elapsed_ms(const DeviceEvent&) const { return absent(); }

DeviceBuffer::DeviceBuffer(const CudaDevice&, std::size_t) { throw_absent(); }
void DeviceBuffer::Deleter::operator()(std::byte*) const {}
PinnedBuffer::PinnedBuffer(const CudaDevice&, std::size_t) { throw_absent(); }
void PinnedBuffer::Deleter::operator()(std::byte*) const {}

Status copy_async(void*, const void*, std::size_t, CudaStream) { return absent(); }
Status fill_async(void*, std::uint8_t, std::size_t, CudaStream) { return absent(); }

Result<DeviceGraph> DeviceGraph::capture(const DeviceStream&, const std::function<Status()>&) {
  return absent();
}
Status DeviceGraph::launch(CudaStream) const { return absent(); }
void DeviceGraph::Deleter::operator()(CUgraphExec_st*) const {}

Result<DeviceWindow> DeviceWindow::create(const CudaDevice&, std::size_t) { return absent(); }
Result<DeviceWindow> DeviceWindow::map_peer(const CudaDevice&, int, std::size_t) {
  return absent();
}
Result<int> DeviceWindow::export_fd() const { return absent(); }
Status DeviceWindow::allow_access(const CudaDevice&) const { return absent(); }

SmPartition SmPartition::create(const CudaDevice&, std::span<const double>, std::size_t) {
  throw_absent();
}
DeviceStream SmPartition::make_stream(StreamPriority) const { throw_absent(); }
SmLimits sm_limits(const CudaDevice&) { throw_absent(); }
CtaFootprint cta_footprint(const CudaDevice&, const void*,
                           std::string,  // NOLINT(performance-unnecessary-value-param)
                           std::uint32_t, std::size_t) {
  throw_absent();
}

}  // namespace fastfd::device
