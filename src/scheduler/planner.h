#pragma once

#include <optional>
#include <utility>
#include <vector>

#include "fastfd/core/step_plan.h"
#include "scheduler/chunk_cutter.h"
#include "scheduler/placement.h"
#include "scheduler/state.h"

namespace fastfd::scheduler {

/// Step 2 of a request: makes the next step from what is known now, which never includes the tokens
/// of steps in flight. In order: pages for the decode rows (preempting where they will not do),
/// prompt chunks, admissions, lanes, and the plan itself.
class Planner {
 public:
  explicit Planner(State& state) : state_(state), scratch_(state.servers.size()) {}

  std::optional<StepPlan> plan();

 private:
  /// Of one server, for the step being planned.
  struct Scratch {
    std::vector<Sequence*> needs_page;  ///< decode rows whose next position begins a page
    std::vector<std::pair<Sequence*, PageId>> appended;
    std::vector<Chunk> chunks;
    std::uint32_t token_budget = 0;  ///< rows that are left for prompts
    LaneWork expected_work;          ///< with everybody admitted so far; set if anybody waits
    LaneMask had_rows = 0;           ///< lanes whose row list a barrier must replace
  };

  // planner.cpp
  bool secure_decode_pages(ServerRank server);
  Sequence* choose_victim(const ServerState& server) const;
  void continue_prompts(ServerRank server);
  bool admit(Sequence* sequence);
  std::optional<ServerRank> find_server(Sequence& sequence);
  std::uint32_t find_hits(Sequence& sequence, ServerRank server, std::vector<PageId>& pages) const;
  bool choose_lanes();
  void add_chunk(ServerRank server, Sequence* sequence);

  // plan_builder.cpp
  StepPlan build(bool barrier);
  AttentionStepPlan build_server(ServerRank server, bool barrier, ServerStep& in_flight);
  void add_piece(const Piece& piece, AttentionLanePlan& lane, ServerStep& in_flight);
  void advance(ServerRank server, const ServerStep& in_flight);

  State& state_;
  std::vector<Scratch> scratch_;  // [num_attention_servers]
  std::vector<ServerLoad> loads_;
  std::vector<PageId> hit_pages_;
  ChunkCutter cutter_;
  std::uint32_t unbalanced_steps_ = 0;
  std::uint32_t steps_since_choice_ = 0;
};

}  // namespace fastfd::scheduler
