#include "fastfd/transport/cuda_ipc.h"

#include <utility>

#include "fastfd/device/cuda_window.h"
#include "transport/device_exchange.h"

namespace fastfd::transport {
namespace {

Block block_of(device::DeviceWindow window) {
  std::byte* data = window.data();
  return {data, std::make_shared<device::DeviceWindow>(std::move(window))};
}

/// Memory of a GPU, by its driver's descriptors.
class GpuMemoryMaker final : public BlockMaker {
 public:
  explicit GpuMemoryMaker(device::CudaDevice device) : device_(std::move(device)) {}

  Result<OwnBlock> make(const std::string& /*name*/, std::size_t num_bytes) const override {
    auto window = device::DeviceWindow::create(device_, num_bytes);
    if (!window) {
      return window.status();
    }
    const auto fd = window->export_fd();
    if (!fd) {
      return fd.status();
    }
    return OwnBlock{block_of(std::move(*window)), UniqueFd(*fd)};
  }

  Result<Block> map_peer(const UniqueFd& fd, std::size_t num_bytes) const override {
    auto window = device::DeviceWindow::map_peer(device_, fd.get(), num_bytes);
    if (!window) {
      return window.status();
    }
    return block_of(std::move(*window));
  }

 private:
  device::CudaDevice device_;
};

}  // namespace

Result<std::shared_ptr<DevicePort>> connect_device(Rendezvous& rendezvous, const BlockMaker& maker,
                                                   Epoch epoch, std::span<const PeerAddress> peers,
                                                   const ConnectOptions& options) {
  auto memory =
      rendezvous.exchange(epoch, peers, options, {maker, {window_piece(rendezvous.self())}});
  if (!memory) {
    return memory.status();
  }
  auto owned = std::make_shared<EpochMemory>(std::move(*memory));
  DeviceWindows windows{{}, {}, owned};
  for (ServerRank rank = 0; rank < owned->num_ranks(); ++rank) {
    windows.send.push_back(owned->peers(rank, 0));
    windows.receive.push_back(owned->own(rank, 0));
  }
  return std::make_shared<DevicePort>(rendezvous.self().shape, std::move(windows));
}

struct DeviceEndpoint::Impl {
  Rendezvous rendezvous;
  GpuMemoryMaker maker;
};

DeviceEndpoint::DeviceEndpoint(const device::CudaDevice& device, const EndpointOptions& options)
    : impl_(new Impl{{options, WindowKind::kGpuMemory, device.to_string()},
                     GpuMemoryMaker(device)}) {}
DeviceEndpoint::~DeviceEndpoint() = default;

const std::string& DeviceEndpoint::address() const { return impl_->rendezvous.address(); }

Result<std::shared_ptr<DevicePort>> DeviceEndpoint::connect(Epoch epoch,
                                                            std::span<const PeerAddress> peers,
                                                            const ConnectOptions& options) {
  return connect_device(impl_->rendezvous, impl_->maker, epoch, peers, options);
}

}  // namespace fastfd::transport
