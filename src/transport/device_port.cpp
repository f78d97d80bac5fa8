#include "fastfd/transport/device_port.h"

#include <utility>

#include "fastfd/device/cuda_window.h"
#include "transport/window_layouts.h"

namespace fastfd::transport {
namespace {

/// All windows and abort words of an in-process fabric.
struct FabricMemory {
  std::vector<device::DeviceWindow> windows;
  device::PinnedBuffer abort_words;
};

std::byte* add_window(FabricMemory& memory, const device::CudaDevice& device,
                      std::size_t num_bytes) {
  auto window = device::DeviceWindow::create(device, num_bytes);
  if (!window) {
    throw device::DeviceError("receive windows: " + window.status().message());
  }
  memory.windows.push_back(*std::move(window));
  return memory.windows.back().data();
}

}  // namespace

DevicePort::DevicePort(const WindowShape& shape, DeviceWindows windows, std::uint32_t* abort_word)
    : shape_(shape), windows_(std::move(windows)), abort_word_(abort_word) {}

void DevicePort::begin_epoch(Epoch /*epoch*/) {
  std::atomic_ref(*abort_word_).store(0, std::memory_order_release);
}

void DevicePort::abort() { std::atomic_ref(*abort_word_).store(1, std::memory_order_release); }

InprocDeviceFabric::InprocDeviceFabric(const device::CudaDevice& device, const WindowShape& shape,
                                       std::uint32_t num_attention, std::uint32_t num_ffn) {
  auto memory = std::make_shared<FabricMemory>();
  // A line each: a host that raises one word does not disturb the polls of another.
  constexpr std::size_t kWordStride = 128 / sizeof(std::uint32_t);
  memory->abort_words =
      device::PinnedBuffer(device, (num_attention + num_ffn) * kWordStride * sizeof(std::uint32_t));
  auto* words = memory->abort_words.as<std::uint32_t>();
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
    attention_.push_back(
        std::make_shared<DevicePort>(shape, std::move(attention[a]), words + a * kWordStride));
  }
  for (ServerRank f = 0; f < num_ffn; ++f) {
    ffn[f].memory = memory;
    ffn_.push_back(std::make_shared<DevicePort>(shape, std::move(ffn[f]),
                                                words + (num_attention + f) * kWordStride));
  }
}

}  // namespace fastfd::transport
