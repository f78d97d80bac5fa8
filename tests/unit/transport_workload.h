#pragma once

/// A random plan that all servers derive from one seed, and the loops that run it over ports: what
/// attention_server and ffn_server do, without the arithmetic.

#include <array>
#include <bit>
#include <cstdint>
#include <string>

#include "unit/transport_support.h"

namespace fastfd::transport::testing_support {

struct Workload {
  WindowShape shape;
  Epoch epoch = 1;
  std::uint32_t num_attention = 1;
  std::uint32_t num_ffn = 1;
  std::uint64_t num_steps = 1;
  std::uint64_t seed = 1;

  /// Attention servers in (step, lane); 0: the lane is not in the plan.
  ServerMask participants(StepId step, LaneId lane) const {
    const std::uint64_t draw = mix(mix(seed, step), lane);
    return draw % 8 == 0 ? 0 : (draw >> 8) & ((ServerMask{1} << num_attention) - 1);
  }
  bool takes_part(StepId step, LaneId lane, ServerRank attention) const {
    return (participants(step, lane) >> attention & 1U) != 0;
  }
  /// Rows to one FFN server: none now and then, the window's maximum now and then.
  std::uint32_t num_rows(const HopId& hop, ServerRank attention, ServerRank ffn) const {
    const std::uint64_t draw = mix(seed, message_seed(hop, attention, ffn, false));
    return static_cast<std::uint32_t>(draw % (shape.max_lane_rows + 1));
  }
  HopId hop(StepId step, std::uint32_t layer, LaneId lane) const {
    return {epoch, step, layer, lane};
  }
};

/// Runs every lane of every step as one attention server. "" or what went wrong.
inline std::string run_attention(const Workload& load, AttentionPort& port, ServerRank me) {
  std::array<std::optional<HopId>, kMaxLanes> in_flight;
  const auto finish = [&](LaneId lane) -> std::string {
    if (!in_flight[lane].has_value()) {
      return "";
    }
    const HopId hop = *in_flight[lane];
    if (port.wait_combine(hop, kHang) != WaitOutcome::kReady) {
      return "no combine from " + port.missing_peers(hop);
    }
    for (ServerRank ffn = 0; ffn < load.num_ffn; ++ffn) {
      if (!combine_is_right(port, load.shape, me, ffn, hop, load.num_rows(hop, me, ffn))) {
        return "combine differs, FFN server " + std::to_string(ffn);
      }
    }
    in_flight[lane].reset();
    return "";
  };
  for (StepId step = 1; step <= load.num_steps; ++step) {
    for (std::uint32_t layer = 0; layer < load.shape.num_layers; ++layer) {
      for (LaneId lane = 0; lane < kMaxLanes; ++lane) {
        if (!load.takes_part(step, lane, me)) {
          continue;
        }
        if (std::string problem = finish(lane); !problem.empty()) {
          return problem;
        }
        const HopId hop = load.hop(step, layer, lane);
        for (ServerRank ffn = 0; ffn < load.num_ffn; ++ffn) {
          send_dispatch(port, load.shape, me, ffn, hop, load.num_rows(hop, me, ffn));
        }
        in_flight[lane] = hop;
      }
    }
  }
  for (LaneId lane = 0; lane < kMaxLanes; ++lane) {
    if (std::string problem = finish(lane); !problem.empty()) {
      return problem;
    }
  }
  return "";
}

/// Runs whichever lane is complete first, as one FFN server. "" or what went wrong.
inline std::string run_ffn(const Workload& load, FfnPort& port, ServerRank me) {
  struct Cursor {
    StepId step = 1;
    std::uint32_t layer = 0;
  };
  std::array<Cursor, kMaxLanes> cursors;
  const auto skip_absent = [&](LaneId lane) {
    while (cursors[lane].step <= load.num_steps &&
           load.participants(cursors[lane].step, lane) == 0) {
      ++cursors[lane].step;
    }
    return cursors[lane].step <= load.num_steps;
  };
  for (;;) {
    const std::uint32_t seen = port.doorbell();
    bool is_busy = false;
    bool has_run = false;
    for (LaneId lane = 0; lane < kMaxLanes; ++lane) {
      if (!skip_absent(lane)) {
        continue;
      }
      is_busy = true;
      Cursor& cursor = cursors[lane];
      const HopId hop = load.hop(cursor.step, cursor.layer, lane);
      const ServerMask participants = load.participants(cursor.step, lane);
      if (!port.dispatch_ready(hop, participants)) {
        continue;
      }
      has_run = true;
      for (ServerMask rest = participants; rest != 0; rest &= rest - 1) {
        const auto attention = static_cast<ServerRank>(std::countr_zero(rest));
        const std::uint32_t num_rows = load.num_rows(hop, attention, me);
        const std::string problem = check_dispatch(port, load.shape, attention, me, hop, num_rows);
        if (!problem.empty()) {
          return "attention server " + std::to_string(attention) + ": " + problem;
        }
        send_combine(port, load.shape, attention, me, hop, num_rows);
      }
      if (++cursor.layer == load.shape.num_layers) {
        cursor = {cursor.step + 1, 0};
      }
    }
    if (!is_busy) {
      return "";
    }
    if (!has_run && port.wait(seen, kHang) != WaitOutcome::kWoken) {
      return "nothing came";
    }
  }
}

}  // namespace fastfd::transport::testing_support
