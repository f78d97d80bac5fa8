#include <algorithm>
#include <array>
#include <bit>
#include <utility>
#include <vector>

#include "fastfd/core/row_bucket.h"
#include "scheduler/planner.h"

namespace fastfd::scheduler {

StepPlan Planner::build(bool barrier) {
  StepPlan plan;
  plan.step = state_.next_step++;
  plan.epoch = state_.epoch;
  StepInFlight& in_flight = state_.in_flight.prepare(plan.step);
  std::array<ServerMask, kMaxLanes> participants{};
  std::array<std::uint32_t, kMaxLanes> lane_rows{};
  std::array<bool, kMaxLanes> has_pieces{};
  std::array<std::vector<std::uint32_t>, kMaxLanes> buckets;  // of the participants, by rank
  for (ServerRank rank = 0; rank < state_.servers.size(); ++rank) {
    AttentionStepPlan server_plan = build_server(rank, barrier, in_flight.servers[rank]);
    for (const AttentionLanePlan& lane : server_plan.lanes) {
      lane_rows[lane.lane] += lane.num_rows;
      if (lane.num_rows > 0) {
        participants[lane.lane] |= ServerMask{1} << rank;
        buckets[lane.lane].push_back(lane.row_bucket);
        has_pieces[lane.lane] = has_pieces[lane.lane] || !lane.pieces.empty();
      }
    }
    if (!server_plan.lanes.empty()) {
      server_plan.step = plan.step;
      plan.attention.emplace_back(rank, std::move(server_plan));
    }
    advance(rank, in_flight.servers[rank]);
  }
  for (auto& of_lane : buckets) {
    if (state_.options.uniform_buckets && !of_lane.empty()) {
      std::fill(of_lane.begin(), of_lane.end(), *std::max_element(of_lane.begin(), of_lane.end()));
    }
  }
  // Both pools replay a graph or neither does: a lane with prompt pieces has a shape of its own.
  const auto use_graph = [&](LaneId b) { return state_.options.use_graphs && !has_pieces[b]; };
  for (auto& [rank, server_plan] : plan.attention) {
    for (AttentionLanePlan& lane : server_plan.lanes) {
      lane.participants = participants[lane.lane];
      if (state_.options.uniform_buckets && lane.num_rows > 0) {
        lane.row_bucket = buckets[lane.lane].front();
      }
      lane.use_graph = lane.num_rows > 0 && use_graph(lane.lane);
    }
  }
  plan.ffn.epoch = plan.epoch;
  plan.ffn.step = plan.step;
  plan.ffn.placement_version = state_.options.placement_version;
  plan.ffn.num_lanes = state_.num_lanes;
  for (LaneId b = 0; b < kMaxLanes; ++b) {
    if (participants[b] != 0) {
      plan.ffn.lanes.push_back(
          {b, participants[b], row_bucket(lane_rows[b]), use_graph(b), std::move(buckets[b])});
    }
  }
  state_.in_flight.publish();
  ++state_.stats.steps_planned;
  return plan;
}

AttentionStepPlan Planner::build_server(ServerRank rank, bool barrier, ServerStep& in_flight) {
  ServerState& server = state_.servers[rank];
  Scratch& scratch = scratch_[rank];
  std::array<AttentionLanePlan, kMaxLanes> lanes;
  for (LaneId b = 0; b < kMaxLanes; ++b) {
    const LaneTable::Lane& table = server.lanes.lane(b);
    lanes[b].lane = b;
    lanes[b].num_rows = static_cast<std::uint32_t>(table.rows.size());
    in_flight.work[b] = server.lanes.work(b);
    if (!barrier) {
      lanes[b].leaves = table.leaves;
    } else if (!table.rows.empty() || (scratch.had_rows & lane_bit(b)) != 0) {
      auto& rows = lanes[b].rows.emplace();
      rows.reserve(table.rows.size());
      for (const Sequence* row : table.rows) {
        rows.push_back({row->lease.slot, row->lease.generation, row->next_position(), kNoToken});
      }
    }
  }
  for (const auto& [row, page] : scratch.appended) {
    lanes[row->home_lane].pages.push_back({row->lease.slot, page});
    ++row->lease.named_pages;
  }
  if (!scratch.chunks.empty()) {
    for (const Piece& piece :
         cutter_.cut(scratch.chunks, server.lanes, state_.num_lanes, state_.attention_cost)) {
      add_piece(piece, lanes[piece.lane], in_flight);
    }
  }
  AttentionStepPlan plan;
  plan.epoch = state_.epoch;
  plan.placement_version = state_.options.placement_version;
  plan.num_lanes = state_.num_lanes;
  plan.barrier = barrier;
  for (AttentionLanePlan& lane : lanes) {
    if (lane.num_rows > 0) {
      lane.row_bucket = row_bucket(lane.num_rows);
      in_flight.planned |= lane_bit(lane.lane);
    }
    if (lane.num_rows > 0 || !lane.leaves.empty() || lane.rows.has_value()) {
      plan.lanes.push_back(std::move(lane));
    }
  }
  if (barrier) {
    in_flight.after_earlier_steps.fill((1U << kMaxLanes) - 1);
  }
  const StepInFlight* before = state_.in_flight.newest();
  in_flight.overlaps = state_.credit() > 1 && !barrier && before != nullptr &&
                       std::popcount(before->servers[rank].planned) > 1 &&
                       (in_flight.planned & lane_bit(0)) != 0;
  return plan;
}

void Planner::add_piece(const Piece& piece, AttentionLanePlan& lane, ServerStep& in_flight) {
  Sequence& sequence = *piece.sequence;
  Lease& lease = sequence.lease;
  const std::uint32_t end = piece.start + piece.num_tokens;
  if (sequence.needs_open) {
    sequence.needs_open = false;
    SlotOpen& open = lane.opens.emplace_back();
    open.slot = lease.slot;
    open.generation = lease.generation;
    open.prompt_len = sequence.prompt_len;
    const std::uint32_t num_full = lease.named_pages - (lease.copy_source ? 1 : 0);
    open.cached_pages.assign(lease.pages.begin(), lease.pages.begin() + num_full);
    if (lease.copy_source) {
      open.copy_page = PageCopy{*lease.copy_source, lease.pages[num_full],
                                piece.start % state_.options.page_size};
    }
    if (sequence.sampling.repetition_penalty != 1.0F) {
      open.prompt_tokens.assign(sequence.tokens.begin(),
                                sequence.tokens.begin() + sequence.prompt_len);
      std::sort(open.prompt_tokens.begin(), open.prompt_tokens.end());
      open.prompt_tokens.erase(std::unique(open.prompt_tokens.begin(), open.prompt_tokens.end()),
                               open.prompt_tokens.end());
    }
    if (sequence.sampling.has_penalties()) {
      open.output_tokens.assign(sequence.tokens.begin() + sequence.prompt_len,
                                sequence.tokens.end());
    }
    open.sampling = sequence.sampling;
  }
  PrefillPiece& out = lane.pieces.emplace_back();
  out.slot = lease.slot;
  out.generation = lease.generation;
  out.start_position = piece.start;
  out.tokens.assign(sequence.tokens.begin() + piece.start, sequence.tokens.begin() + end);
  const std::uint32_t page_size = state_.options.page_size;
  const std::uint32_t num_pages = (end + page_size - 1) / page_size;
  out.new_pages.assign(lease.pages.begin() + lease.named_pages, lease.pages.begin() + num_pages);
  out.samples = piece.samples;
  lease.named_pages = num_pages;

  // It must commit after what the sequence computed before, here or in earlier steps.
  if (lease.busy_until.step == state_.last_step()) {
    in_flight.after_same_step[piece.lane] |= lease.busy_until.lanes;
    lease.busy_until.lanes |= lane_bit(piece.lane);
  } else {
    in_flight.after_earlier_steps[piece.lane] |= lease.busy_until.lanes;
    lease.busy_until = {state_.last_step(), lane_bit(piece.lane)};
  }
  lane.num_rows += piece.num_tokens;
  LaneWork& work = in_flight.work[piece.lane];
  work.rows += piece.num_tokens;
  work.context += piece.num_tokens * (piece.start + piece.num_tokens / 2.0);
  in_flight.pieces.push_back({&sequence, piece.lane, end});
  sequence.planned_kv = end;
  sequence.home_lane = piece.lane;
  state_.stats.prompt_tokens_computed += piece.num_tokens;
}

/// The step is as good as published: rows move on by one token, finished prompts become rows, and
/// whoever has all its tokens planned leaves with the next plan.
void Planner::advance(ServerRank rank, const ServerStep& in_flight) {
  ServerState& server = state_.servers[rank];
  server.lanes.clear_leaves();
  for (const SlotId slot : server.slots_behind_leave) {
    server.ledger.return_slot(slot);
  }
  server.slots_behind_leave.clear();
  for (Sequence* sequence : server.retired) {
    sequence->leave_pending = false;
  }
  const auto finish = [this](Sequence* sequence) {
    sequence->phase = Phase::kFinishing;
    sequence->lease.busy_until = {state_.last_step(), lane_bit(sequence->home_lane)};
    state_.retire(sequence);
  };
  server.lanes.advance(finish);
  for (const PieceInFlight& piece : in_flight.pieces) {
    Sequence* sequence = piece.sequence;
    if (piece.end_position < sequence->prefill_len) {
      continue;
    }
    if (++sequence->planned_len == sequence->limit_len) {
      server.lanes.leave_at_once(sequence);
      finish(sequence);
    } else {
      sequence->phase = Phase::kDecode;
      server.lanes.add(sequence);
    }
  }
  std::erase_if(server.prefilling,
                [](const Sequence* sequence) { return sequence->phase != Phase::kPrefill; });
}

}  // namespace fastfd::scheduler
