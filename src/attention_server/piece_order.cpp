#include "attention_server/piece_order.h"

namespace fastfd::attention_server {

PieceOrder::PieceOrder(const device::CudaDevice& device, std::uint32_t num_layers)
    : has_pieces_(kMaxLanes, false) {
  for (LaneId lane = 0; lane < kMaxLanes; ++lane) {
    plan_applied_.emplace_back(device);
    auto& events = written_.emplace_back();
    for (std::uint32_t layer = 0; layer < num_layers; ++layer) {
      events.emplace_back(device);
    }
  }
}

void PieceOrder::reset() { has_pieces_.assign(kMaxLanes, false); }

Status PieceOrder::begin(LaneId lane, const device::DeviceStream& stream) {
  Status status;
  for (LaneId other = 0; status && other < kMaxLanes; ++other) {
    if (other != lane && has_pieces_[other]) {
      status = stream.wait(plan_applied_[other]);
    }
  }
  has_pieces_[lane] = true;
  return status ? plan_applied_[lane].record(stream.handle()) : status;
}

Status PieceOrder::wait_for_others(LaneId lane, std::uint32_t layer,
                                   const device::DeviceStream& stream) const {
  Status status;
  for (LaneId other = 0; status && other < kMaxLanes; ++other) {
    if (other != lane && has_pieces_[other]) {
      status = stream.wait(written_[other][layer]);
    }
  }
  return status;
}

Status PieceOrder::wrote(LaneId lane, std::uint32_t layer,
                         const device::DeviceStream& stream) const {
  return written_[lane][layer].record(stream.handle());
}

}  // namespace fastfd::attention_server
