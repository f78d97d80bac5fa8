#include "transport/nccl_port.h"

#include <fmt/format.h>

#include <bit>
#include <chrono>
#include <thread>
#include <utility>

#include "fastfd/core/logging.h"
#include "kernels/layout/lane_control.h"
#include "transport/window_layouts.h"

namespace fastfd::transport {
namespace {

constexpr Role other_role(Role role) {
  return role == Role::kAttention ? Role::kFfn : Role::kAttention;
}

}  // namespace

AbortMark::AbortMark(const device::CudaDevice& device)
    : device_(device),
      stream_(device, device::kHighestPriority),
      one_(device, sizeof(std::uint32_t)) {
  *one_.as<std::uint32_t>() = 1;
}

void AbortMark::set(layout::AbortState* state) const {
  // Bounded, should the copy be stuck behind what is to be ended.
  constexpr std::chrono::seconds kPatience{1};
  Status status = device_.make_current();
  if (status) {
    // The rest stays 0: kHostAsked.
    status =
        device::copy_async(&state->aborted, one_.data(), sizeof(state->aborted), stream_.handle());
  }
  const auto end = std::chrono::steady_clock::now() + kPatience;
  while (status && std::chrono::steady_clock::now() < end) {
    const auto idle = stream_.is_idle();
    status = idle.status();
    if (status && *idle) {
      return;
    }
    std::this_thread::yield();
  }
  spdlog::warn("the GPU was not told of the epoch's end: {}",
               status ? "it took no copy within 1 s" : status.message());
}

void NcclLanes::abort() {
  for (auto* lanes : {&dispatch, &combine}) {
    for (const auto& communicator : *lanes) {
      communicator->ask_abort();
    }
  }
  // Kernels of one direction queue behind those of the other.
  const std::jthread dispatches([this] { abort_communicators(dispatch); });
  abort_communicators(combine);
}

NcclPort::NcclPort(NcclPortParts parts)
    : DevicePort(parts.shape, std::move(parts.windows)),
      peer_role_(other_role(parts.role)),
      ranks_(std::move(parts.ranks)),
      lanes_(std::move(parts.lanes)),
      abort_mark_(std::move(parts.abort_mark)),
      dispatch_layout_(dispatch_layout(parts.shape)),
      combine_layout_(combine_layout(parts.shape)) {
  transfers_.reserve(SlotParts::kMaxParts * kMaxServers);
}

// An epoch that began was aborted when it ended; the server's words are the next one's by now.
NcclPort::~NcclPort() { end_communicators(/*mark=*/false); }

void NcclPort::abort() {
  DevicePort::abort();
  end_communicators(/*mark=*/true);
}

void NcclPort::end_communicators(bool mark) {
  std::call_once(ended_, [&] {
    // On a thread of its own: it makes the GPU current.
    std::jthread([&] {
      if (mark && abort_state() != nullptr) {
        abort_mark_->set(abort_state());
      }
      lanes_.abort();
    });
  });
}

void NcclPort::add(std::byte* window, const SlotParts& parts, bool is_send, ServerRank peer) {
  for (const SlotPart& part : parts) {
    transfers_.push_back(
        {is_send, window + part.offset, part.num_bytes, ranks_.rank_of(peer_role_, peer)});
  }
}

Status NcclPort::check_lane(LaneId lane) const {
  if (lane < lanes_.dispatch.size()) {
    return Status::ok();
  }
  return {StatusCode::kInternal, fmt::format("a plan uses lane {}, but only {} are connected", lane,
                                             lanes_.dispatch.size())};
}

template <typename AddPeer>
Status NcclPort::for_participants(const FfnLanePlan& plan, const AddPeer& add_peer) const {
  if (plan.participant_buckets.size() !=
      static_cast<std::size_t>(std::popcount(plan.participants))) {
    return {StatusCode::kInternal,
            fmt::format("the plan of lane {} has {} buckets for {} participants", plan.lane,
                        plan.participant_buckets.size(), std::popcount(plan.participants))};
  }
  std::size_t next = 0;
  for (ServerMask left = plan.participants; left != 0; left &= left - 1) {
    const auto rank = static_cast<ServerRank>(std::countr_zero(left));
    if (!ranks_.contains(Role::kAttention, rank)) {
      return {StatusCode::kInternal,
              fmt::format("attention server {} takes part in lane {}, but is not connected", rank,
                          plan.lane)};
    }
    add_peer(rank, plan.participant_buckets[next++]);
  }
  return Status::ok();
}

Status NcclPort::send_dispatch(const layout::LaneHop& hop, std::uint32_t bucket,
                               device::CudaStream stream) {
  if (Status status = check_lane(hop.lane); !status) {
    return status;
  }
  transfers_.clear();
  const SlotParts parts = dispatch_parts(dispatch_layout_, hop, bucket);
  for (const ServerRank rank : ranks_.servers(Role::kFfn)) {
    add(windows().send[rank], parts, /*is_send=*/true, rank);
  }
  return lanes_.dispatch[hop.lane]->exchange(transfers_, stream);
}

Status NcclPort::receive_combine(const layout::LaneHop& hop, std::uint32_t bucket,
                                 device::CudaStream stream) {
  if (Status status = check_lane(hop.lane); !status) {
    return status;
  }
  transfers_.clear();
  const SlotParts parts = combine_parts(combine_layout_, hop, bucket);
  for (const ServerRank rank : ranks_.servers(Role::kFfn)) {
    add(windows().receive[rank], parts, /*is_send=*/false, rank);
  }
  return lanes_.combine[hop.lane]->exchange(transfers_, stream);
}

Status NcclPort::receive_dispatch(const layout::LaneHop& hop, const FfnLanePlan& plan,
                                  device::CudaStream stream) {
  Status status = check_lane(hop.lane);
  transfers_.clear();
  if (status) {
    status = for_participants(plan, [&](ServerRank rank, std::uint32_t bucket) {
      add(windows().receive[rank], dispatch_parts(dispatch_layout_, hop, bucket),
          /*is_send=*/false, rank);
    });
  }
  return status ? lanes_.dispatch[hop.lane]->exchange(transfers_, stream) : status;
}

Status NcclPort::send_combine(const layout::LaneHop& hop, const FfnLanePlan& plan,
                              device::CudaStream stream) {
  Status status = check_lane(hop.lane);
  transfers_.clear();
  if (status) {
    status = for_participants(plan, [&](ServerRank rank, std::uint32_t bucket) {
      add(windows().send[rank], combine_parts(combine_layout_, hop, bucket), /*is_send=*/true,
          rank);
    });
  }
  return status ? lanes_.combine[hop.lane]->exchange(transfers_, stream) : status;
}

Status NcclPort::health() {
  for (const auto* lanes : {&lanes_.dispatch, &lanes_.combine}) {
    for (const auto& communicator : *lanes) {
      if (Status status = communicator->health(); !status) {
        return status;
      }
    }
  }
  return Status::ok();
}

}  // namespace fastfd::transport
