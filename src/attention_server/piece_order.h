#pragma once

#include <cstdint>
#include <vector>

#include "fastfd/core/ids.h"
#include "fastfd/core/status.h"
#include "fastfd/device/cuda.h"

namespace fastfd::attention_server {

/// The pieces of one prompt may run in several lanes, whose streams know nothing of each other: an
/// event a lane says that its plan is applied, and one a lane and layer that what the next piece
/// reads there is written. Lanes are enqueued in the order of the pieces. Loop thread only.
class PieceOrder {
 public:
  PieceOrder(const device::CudaDevice& device, std::uint32_t num_layers);

  /// Nothing of an earlier epoch runs any more.
  void reset();

  /// A lane with pieces begins: page-table entries, copied pages and sampling state may be on the
  /// streams of others, and a piece may begin in the middle of a page.
  Status begin(LaneId lane, const device::DeviceStream& stream);
  /// What the other lanes' pieces, as far as they are enqueued, write in `layer` is there.
  Status wait_for_others(LaneId lane, std::uint32_t layer,
                         const device::DeviceStream& stream) const;
  /// What this lane's piece writes in `layer` is enqueued.
  Status wrote(LaneId lane, std::uint32_t layer, const device::DeviceStream& stream) const;

 private:
  std::vector<device::DeviceEvent> plan_applied_;          // [kMaxLanes]
  std::vector<std::vector<device::DeviceEvent>> written_;  // [kMaxLanes][num_layers]
  std::vector<bool> has_pieces_;                           // [kMaxLanes] so far in this epoch
};

}  // namespace fastfd::attention_server
