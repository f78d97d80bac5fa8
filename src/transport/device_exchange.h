#pragma once

/// A data plane of windows alone, as kernels use it: `cuda_ipc` without the GPU.

#include <memory>
#include <span>

#include "fastfd/core/status.h"
#include "fastfd/transport/device_port.h"
#include "transport/rendezvous.h"

namespace fastfd::transport {

/// Exchanges windows of `maker`'s memory and names them to a port. The port keeps the mappings, not
/// the maker.
Result<std::shared_ptr<DevicePort>> connect_device(Rendezvous& rendezvous, const BlockMaker& maker,
                                                   Epoch epoch, std::span<const PeerAddress> peers,
                                                   const ConnectOptions& options);

}  // namespace fastfd::transport
