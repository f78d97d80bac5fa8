#include "transport/window_ports.h"

#include <fmt/format.h>

#include <bit>
#include <utility>

#include "fastfd/core/check.h"
#include "fastfd/core/logging.h"
#include "transport/window_layouts.h"

namespace fastfd::transport {
namespace {

/// "attention server 1", "attention servers 0, 2", "" of none.
std::string list_peers(const char* role, const std::vector<std::string>& peers) {
  if (peers.empty()) {
    return "";
  }
  return fmt::format("{} server{} {}", role, peers.size() == 1 ? "" : "s", fmt::join(peers, ", "));
}

/// Why a dispatch can't be used, or nullptr. A peer with a bug must not make this server read
/// beyond its window.
const char* find_problem(const DispatchReader& message, const layout::SlotHeader& header,
                         const HopId& hop, const WindowShape& shape) {
  if (header.epoch != hop.epoch || header.step != hop.step || header.layer != hop.layer ||
      header.lane != hop.lane) {
    return "the header names another hop than the flag";
  }
  if (message.num_rows > shape.max_lane_rows) {
    return "more rows than max_lane_rows";
  }
  if (message.route_offsets[0] != 0) {
    return "route_offsets does not start at 0";
  }
  for (std::uint32_t row = 0; row < message.num_rows; ++row) {
    const std::uint32_t begin = message.route_offsets[row];
    const std::uint32_t end = message.route_offsets[row + 1];
    if (end < begin || end - begin > shape.max_routes_per_row) {
      return "a row's routes run backwards or exceed max_routes_per_row";
    }
  }
  if (message.route_offsets[message.num_rows] != message.num_routes) {
    return "route_offsets does not end at num_routes";
  }
  return nullptr;
}

}  // namespace

WindowPort::WindowPort(PortParts parts)
    : parts_(std::move(parts)),
      dispatch_layout_(dispatch_layout(parts_.shape)),
      combine_layout_(combine_layout(parts_.shape)),
      epoch_(parts_.epoch),
      last_raised_(parts_.pairs.size()) {}

void WindowPort::abort_waits() {
  aborted_.store(true, std::memory_order_release);
  parts_.own_doorbell.ring();
}

void WindowPort::enter_epoch(Epoch epoch) {
  check(epoch >= epoch_.load(std::memory_order_relaxed), "a port's epoch only grows");
  epoch_.store(epoch, std::memory_order_relaxed);
  aborted_.store(false, std::memory_order_release);
}

bool WindowPort::is_current(const HopId& hop) const {
  check(hop.lane < kMaxLanes && hop.layer < parts_.shape.num_layers, "hop out of range");
  return hop.epoch == epoch_.load(std::memory_order_relaxed);
}

const PairWindows& WindowPort::pair(ServerRank peer, const HopId& hop) const {
  check(peer < parts_.pairs.size() && parts_.pairs[peer].is_connected(),
        "no such peer in this epoch");
  check(hop.lane < kMaxLanes && hop.layer < parts_.shape.num_layers, "hop out of range");
  return parts_.pairs[peer];
}

bool WindowPort::publish(ServerRank peer, const HopId& hop, std::uint32_t num_rows,
                         std::uint32_t num_routes, std::uint64_t* flag,
                         layout::SlotHeader* header) {
  check(num_rows <= parts_.shape.max_lane_rows, "more rows than the window holds");
  if (aborted_.load(std::memory_order_acquire)) {
    return false;
  }
  std::uint64_t& last = last_raised_[peer][hop.lane][layout::buffer_of_layer(hop.layer)];
  const std::uint64_t next = flag_of(hop);
  if (!is_current(hop) || !layout::flag_advances(last, next)) {
    spdlog::warn("dropped a late send: peer {}, epoch {}, step {}, layer {}, lane {}", peer,
                 hop.epoch, hop.step, hop.layer, hop.lane);
    return false;
  }
  last = next;
  header->num_rows = num_rows;
  header->num_routes = num_routes;
  header->epoch = hop.epoch;
  header->lane = hop.lane;
  header->step = hop.step;
  header->layer = hop.layer;
  std::atomic_ref(*flag).store(next, std::memory_order_release);
  Doorbell bell = parts_.pairs[peer].peer_doorbell;
  bell.ring();
  return true;
}

// ---- attention server's end ----

WindowAttentionPort::WindowAttentionPort(PortParts parts)
    : WindowPort(std::move(parts)), rows_sent_(parts_.pairs.size()) {}

std::uint32_t WindowAttentionPort::num_ffn_servers() const {
  return static_cast<std::uint32_t>(parts_.pairs.size());
}

layout::CombineSlot WindowAttentionPort::combine_slot(ServerRank ffn_rank, const HopId& hop) const {
  return combine_layout_.slot(parts_.pairs[ffn_rank].combine, hop.lane,
                              layout::buffer_of_layer(hop.layer));
}

DispatchWriter WindowAttentionPort::dispatch_buffer(ServerRank ffn_rank, const HopId& hop) {
  const layout::DispatchSlot slot = dispatch_layout_.slot(pair(ffn_rank, hop).dispatch, hop.lane,
                                                          layout::buffer_of_layer(hop.layer));
  return {slot.rows, slot.route_offsets, slot.route_experts, slot.route_weights};
}

void WindowAttentionPort::send_dispatch(ServerRank ffn_rank, const HopId& hop,
                                        std::uint32_t num_rows, std::uint32_t num_routes) {
  const std::uint32_t buffer = layout::buffer_of_layer(hop.layer);
  const layout::DispatchSlot slot =
      dispatch_layout_.slot(pair(ffn_rank, hop).dispatch, hop.lane, buffer);
  if (publish(ffn_rank, hop, num_rows, num_routes, slot.flag, slot.header)) {
    rows_sent_[ffn_rank][hop.lane][buffer] = num_rows;
  }
}

bool WindowAttentionPort::has_answered(ServerRank ffn_rank, const HopId& hop,
                                       std::uint64_t wanted) const {
  const layout::CombineSlot slot = combine_slot(ffn_rank, hop);
  return has_arrived(slot.flag, wanted) &&
         slot.header->num_rows ==
             rows_sent_[ffn_rank][hop.lane][layout::buffer_of_layer(hop.layer)];
}

bool WindowAttentionPort::combine_ready(const HopId& hop) {
  if (!is_current(hop)) {
    return false;
  }
  const std::uint64_t wanted = flag_of(hop);
  for (ServerRank rank = 0; rank < parts_.pairs.size(); ++rank) {
    if (parts_.pairs[rank].is_connected() && !has_answered(rank, hop, wanted)) {
      return false;
    }
  }
  return true;
}

WaitOutcome WindowAttentionPort::wait_combine(const HopId& hop, std::chrono::microseconds timeout) {
  if (!is_current(hop)) {
    return WaitOutcome::kAborted;
  }
  const std::uint64_t wanted = flag_of(hop);
  ServerRank next = 0;  // peers below it have answered: each poll looks at one flag only
  return parts_.own_doorbell.wait(parts_.wait_policy, timeout, aborted_, [&] {
    while (next < parts_.pairs.size() &&
           (!parts_.pairs[next].is_connected() || has_answered(next, hop, wanted))) {
      ++next;
    }
    return next == parts_.pairs.size();
  });
}

const std::byte* WindowAttentionPort::combine_rows(ServerRank ffn_rank, const HopId& hop) const {
  return combine_layout_
      .slot(pair(ffn_rank, hop).combine, hop.lane, layout::buffer_of_layer(hop.layer))
      .rows;
}

std::string WindowAttentionPort::missing_peers(const HopId& hop) const {
  const std::uint64_t wanted = flag_of(hop);
  std::vector<std::string> missing;
  for (ServerRank rank = 0; rank < parts_.pairs.size(); ++rank) {
    if (!parts_.pairs[rank].is_connected() || has_answered(rank, hop, wanted)) {
      continue;
    }
    const layout::CombineSlot slot = combine_slot(rank, hop);
    if (has_arrived(slot.flag, wanted)) {
      missing.push_back(
          fmt::format("{} (answered {} rows where {} were sent)", rank, slot.header->num_rows,
                      rows_sent_[rank][hop.lane][layout::buffer_of_layer(hop.layer)]));
    } else {
      missing.push_back(std::to_string(rank));
    }
  }
  return list_peers("FFN", missing);
}

// ---- FFN server's end ----

WindowFfnPort::WindowFfnPort(PortParts parts) : WindowPort(std::move(parts)) {}

std::uint32_t WindowFfnPort::num_attention_servers() const {
  return static_cast<std::uint32_t>(parts_.pairs.size());
}

layout::DispatchSlot WindowFfnPort::dispatch_slot(ServerRank attention_rank,
                                                  const HopId& hop) const {
  return dispatch_layout_.slot(parts_.pairs[attention_rank].dispatch, hop.lane,
                               layout::buffer_of_layer(hop.layer));
}

bool WindowFfnPort::dispatch_ready(const HopId& hop, ServerMask participants) {
  if (!is_current(hop)) {
    return false;
  }
  const std::uint64_t wanted = flag_of(hop);
  for (ServerMask rest = participants; rest != 0; rest &= rest - 1) {
    const auto rank = static_cast<ServerRank>(std::countr_zero(rest));
    if (rank >= parts_.pairs.size() || !parts_.pairs[rank].is_connected() ||
        !has_arrived(dispatch_slot(rank, hop).flag, wanted)) {
      return false;
    }
  }
  return true;
}

DispatchReader WindowFfnPort::dispatch(ServerRank attention_rank, const HopId& hop) const {
  pair(attention_rank, hop);
  const layout::DispatchSlot slot = dispatch_slot(attention_rank, hop);
  DispatchReader message;
  message.num_rows = slot.header->num_rows;
  message.num_routes = slot.header->num_routes;
  message.rows = slot.rows;
  message.route_offsets = slot.route_offsets;
  message.route_experts = slot.route_experts;
  message.route_weights = slot.route_weights;
  if (const char* problem = find_problem(message, *slot.header, hop, parts_.shape)) {
    message.valid = false;
    message.problem = problem;
  }
  return message;
}

std::byte* WindowFfnPort::combine_buffer(ServerRank attention_rank, const HopId& hop) {
  return combine_layout_
      .slot(pair(attention_rank, hop).combine, hop.lane, layout::buffer_of_layer(hop.layer))
      .rows;
}

void WindowFfnPort::send_combine(ServerRank attention_rank, const HopId& hop,
                                 std::uint32_t num_rows) {
  const layout::CombineSlot slot = combine_layout_.slot(pair(attention_rank, hop).combine, hop.lane,
                                                        layout::buffer_of_layer(hop.layer));
  publish(attention_rank, hop, num_rows, /*num_routes=*/0, slot.flag, slot.header);
}

WaitOutcome WindowFfnPort::wait(std::uint32_t seen, std::chrono::microseconds timeout) {
  const WaitOutcome outcome =
      parts_.own_doorbell.wait(parts_.wait_policy, timeout, aborted_,
                               [this, seen] { return parts_.own_doorbell.value() != seen; });
  return outcome == WaitOutcome::kReady ? WaitOutcome::kWoken : outcome;
}

std::string WindowFfnPort::missing_peers(const HopId& hop, ServerMask participants) const {
  const std::uint64_t wanted = flag_of(hop);
  std::vector<std::string> missing;
  for (ServerMask rest = participants; rest != 0; rest &= rest - 1) {
    const auto rank = static_cast<ServerRank>(std::countr_zero(rest));
    if (rank >= parts_.pairs.size() || !parts_.pairs[rank].is_connected() ||
        !has_arrived(dispatch_slot(rank, hop).flag, wanted)) {
      missing.push_back(std::to_string(rank));
    }
  }
  return list_peers("attention", missing);
}

}  // namespace fastfd::transport
