#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "fastfd/device/cuda.h"
#include "fastfd/transport/device_port.h"
#include "kernels/layout/window.h"
#include "transport/nccl_communicator.h"
#include "transport/nccl_ranks.h"
#include "transport/slot_parts.h"

namespace fastfd::transport {

/// Sets a server's AbortState from the host while its kernels run. One an endpoint.
class AbortMark {
 public:
  explicit AbortMark(const device::CudaDevice& device);
  /// When it returns, every kernel that starts afterwards sees the word. Makes the GPU current.
  void set(layout::AbortState* state) const;

 private:
  device::CudaDevice device_;
  device::DeviceStream stream_;
  device::PinnedBuffer one_;  // uint32
};

/// The communicators of one epoch: of each lane one for dispatches and one for combines.
struct NcclLanes {
  std::vector<std::unique_ptr<NcclCommunicator>> dispatch;
  std::vector<std::unique_ptr<NcclCommunicator>> combine;

  /// Ends them all, side by side. Any thread.
  void abort();
};

/// What a port is made of, once everything is connected.
struct NcclPortParts {
  WindowShape shape;
  Role role = Role::kAttention;
  NcclRanks ranks;
  DeviceWindows windows;
  NcclLanes lanes;
  std::shared_ptr<const AbortMark> abort_mark;
};

class NcclPort final : public DevicePort {
 public:
  explicit NcclPort(NcclPortParts parts);
  ~NcclPort() override;

  void abort() override;
  bool allows_graphs() const override { return false; }
  Status send_dispatch(const layout::LaneHop& hop, std::uint32_t bucket,
                       device::CudaStream stream) override;
  Status receive_dispatch(const layout::LaneHop& hop, const FfnLanePlan& plan,
                          device::CudaStream stream) override;
  Status send_combine(const layout::LaneHop& hop, const FfnLanePlan& plan,
                      device::CudaStream stream) override;
  Status receive_combine(const layout::LaneHop& hop, std::uint32_t bucket,
                         device::CudaStream stream) override;
  Status health() override;

 private:
  void end_communicators(bool mark);
  /// `window`: this server's end of its pair with the peer.
  void add(std::byte* window, const SlotParts& parts, bool is_send, ServerRank peer);
  Status check_lane(LaneId lane) const;
  /// Calls add_peer(rank, bucket) for every participant. kInternal if the plan does not fit the
  /// epoch.
  template <typename AddPeer>
  Status for_participants(const FfnLanePlan& plan, const AddPeer& add_peer) const;

  Role peer_role_;
  NcclRanks ranks_;
  NcclLanes lanes_;
  std::shared_ptr<const AbortMark> abort_mark_;
  layout::DispatchLayout dispatch_layout_;
  layout::CombineLayout combine_layout_;
  std::vector<NcclTransfer> transfers_;  // of the group that is being made
  std::once_flag ended_;
};

}  // namespace fastfd::transport
