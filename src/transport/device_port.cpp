#include "fastfd/transport/device_port.h"

#include <utility>

#include "fastfd/core/check.h"
#include "fastfd/device/cuda_window.h"
#include "transport/window_layouts.h"

namespace fastfd::transport {
namespace {

using Windows = std::vector<device::DeviceWindow>;

std::byte* add_window(Windows& memory, const device::CudaDevice& device, std::size_t num_bytes) {
  auto window = device::DeviceWindow::create(device, num_bytes);
  if (!window) {
    throw device::DeviceError("receive windows: " + window.status().message());
  }
  memory.push_back(*std::move(window));
  return memory.back().data();
}

}  // namespace

DevicePort::DevicePort(const WindowShape& shape, DeviceWindows windows)
    : shape_(shape), windows_(std::move(windows)) {}

void DevicePort::begin_epoch(Epoch /*epoch*/) {
  check(abort_word_ != nullptr, "a device port whose server has not given its abort word");
  std::atomic_ref(*abort_word_).store(0, std::memory_order_release);
}

void DevicePort::abort() {
  if (abort_word_ != nullptr) {  // else nothing was enqueued yet
    std::atomic_ref(*abort_word_).store(1, std::memory_order_release);
  }
}

// The peers' kernels store into windows by themselves: nothing is left for the host to do.
Status DevicePort::send_dispatch(const layout::LaneHop& /*hop*/, std::uint32_t /*bucket*/,
                                 device::CudaStream /*stream*/) {
  return Status::ok();
}
Status DevicePort::receive_dispatch(const layout::LaneHop& /*hop*/, const FfnLanePlan& /*plan*/,
                                    device::CudaStream /*stream*/) {
  return Status::ok();
}
Status DevicePort::send_combine(const layout::LaneHop& /*hop*/, const FfnLanePlan& /*plan*/,
                                device::CudaStream /*stream*/) {
  return Status::ok();
}
Status DevicePort::receive_combine(const layout::LaneHop& /*hop*/, std::uint32_t /*bucket*/,
                                   device::CudaStream /*stream*/) {
  return Status::ok();
}
Status DevicePort::health() { return Status::ok(); }

InprocDeviceFabric::InprocDeviceFabric(const device::CudaDevice& device, const WindowShape& shape,
                                       std::uint32_t num_attention, std::uint32_t num_ffn) {
  auto memory = std::make_shared<Windows>();
  std::vector<DeviceWindows> attention(num_attention);
  std::vector<DeviceWindows> ffn(num_ffn);
  for (ServerRank a = 0; a < num_attention; ++a) {
    for (ServerRank f = 0; f < num_ffn; ++f) {
      std::byte* dispatch = add_window(*memory, device, dispatch_layout(shape).bytes());
      std::byte* combine = add_window(*memory, device, combine_layout(shape).bytes());
      attention[a].send.push_back(dispatch);
      attention[a].receive.push_back(combine);
      ffn[f].send.push_back(combine);
      ffn[f].receive.push_back(dispatch);
    }
  }
  for (ServerRank a = 0; a < num_attention; ++a) {
    attention[a].memory = memory;
    attention_.push_back(std::make_shared<DevicePort>(shape, std::move(attention[a])));
  }
  for (ServerRank f = 0; f < num_ffn; ++f) {
    ffn[f].memory = memory;
    ffn_.push_back(std::make_shared<DevicePort>(shape, std::move(ffn[f])));
  }
}

}  // namespace fastfd::transport
