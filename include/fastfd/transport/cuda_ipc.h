#pragma once

#include <memory>
#include <span>
#include <string>

#include "fastfd/core/status.h"
#include "fastfd/device/cuda.h"
#include "fastfd/transport/device_port.h"
#include "fastfd/transport/endpoint.h"

namespace fastfd::transport {

/// `cuda_ipc`: servers that are processes of one host and compute on GPUs. Each owns the windows
/// that its peers write, as memory of its GPU, and maps theirs; kernels then store across without
/// the host. Servers of one GPU, or of GPUs that are peers. Who dials, who answers and in which
/// order processes start are as with `shm`, whose handshake this is.
///
/// Every connect makes new windows, so a kernel of an older epoch that stores late reaches only
/// memory that nobody reads any more; a peer's death takes no mapping away. A port outlives its
/// endpoint.
///
/// Windows come and go in step with the GPU, which must not be waiting for a peer then: connect,
/// and let go of the last copy of a port, only while no kernel of this server runs (after
/// ServerLoop::stop_epoch). An old port may live until the next one is there.
class DeviceEndpoint {
 public:
  /// Windows lie on `device`. Throws std::invalid_argument for options that can't be,
  /// std::system_error if the address is taken or can't be bound.
  DeviceEndpoint(const device::CudaDevice& device, const EndpointOptions& options);
  ~DeviceEndpoint();
  DeviceEndpoint(const DeviceEndpoint&) = delete;
  DeviceEndpoint& operator=(const DeviceEndpoint&) = delete;

  const std::string& address() const;

  /// Blocks until windows are exchanged with every server of `peers`, all of the other role, or an
  /// error; makes the GPU current on the calling thread. One thread at a time; `cancel` may be set
  /// by any. Errors, each naming peer, address and remedy:
  ///   kInvalidArgument   shapes, transports or handshake versions differ, or the peer list makes
  ///                      no sense
  ///   kUnavailable       a peer is of another incarnation than the topology says, or its GPU and
  ///                      this one can't reach each other
  ///   kDeadlineExceeded  peers that did not answer (FFN: did not dial) in time, and why if known
  ///   kAborted           cancelled, or the peer is at a later epoch already
  ///   kInternal, kResourceExhausted  what the driver said: no room for the windows
  Result<std::shared_ptr<DevicePort>> connect(Epoch epoch, std::span<const PeerAddress> peers,
                                              const ConnectOptions& options = {});

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace fastfd::transport
