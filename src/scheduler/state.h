#pragma once

/// What planner and committer share: the scheduler's whole state, and the few moves of a sequence
/// that both make. Everything is owned by the engine's thread.

#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "fastfd/scheduler/scheduler.h"
#include "scheduler/cost_model.h"
#include "scheduler/in_flight.h"
#include "scheduler/lane_count.h"
#include "scheduler/lanes.h"
#include "scheduler/page_ledger.h"
#include "scheduler/request_queue.h"
#include "scheduler/sequence.h"

namespace fastfd::scheduler {

/// One attention server as the scheduler sees it.
struct ServerState {
  explicit ServerState(const SchedulerOptions& options);

  /// Sequences that plans go on naming.
  std::uint32_t num_sequences() const {
    return lanes.num_rows() + static_cast<std::uint32_t>(prefilling.size());
  }
  /// A decode step with everything it holds, prompts still being computed included.
  LaneWork expected_work() const;

  PageLedger ledger;
  LaneTable lanes;
  std::vector<Sequence*> prefilling;       ///< in the order of their admission
  std::vector<Sequence*> retired;          ///< in no later plan; their leases are busy still
  std::vector<SlotId> slots_behind_leave;  ///< committed, but no plan has named the leave yet
  std::vector<Sequence*> by_slot;          ///< [num_slots]; nullptr: nobody's results are awaited
};

struct State {
  explicit State(const SchedulerOptions& scheduler_options);

  std::uint32_t credit() const { return options.overlapped ? 1 + options.plan_ahead : 1; }
  StepId last_step() const { return next_step - 1; }
  StepLoad decode_load() const;

  Sequence* create(Request request);
  void destroy(Sequence* sequence);

  /// In no later plan. The lease goes back when the last step that names it has committed; call
  /// collect() afterwards, it may have done so already.
  void retire(Sequence* sequence);
  /// Takes a kPrefill or kDecode sequence out of the next plans and retires it under `phase`.
  void withdraw(Sequence* sequence, Phase phase);
  /// Returns the leases of a server that have committed.
  void collect(ServerRank server);
  /// Its prompt is committed: those who wait for it are queued, and find its pages.
  void queue_forks(Sequence& parent);
  /// Its pages go back, or never came: those who wait for it are queued, to start alone.
  void orphan_forks(Sequence& parent);
  /// It is admitted, or gone.
  static void leave_parent(Sequence& fork);
  /// Recompute: the sequence waits in front of the queue with all tokens that it has emitted.
  void preempt(Sequence* sequence);
  /// Its last event has been made: nobody knows the id any more.
  void forget_request(const Sequence& sequence) { requests.erase(sequence.id); }

  SchedulerOptions options;
  Epoch epoch = 1;
  StepId next_step = 1;
  std::uint32_t num_lanes = 1;
  std::uint32_t num_running = 0;        ///< kPrefill and kDecode
  std::uint32_t num_waiting_forks = 0;  ///< outside the queue
  std::uint64_t next_arrival_order = 0;
  std::vector<ServerState> servers;
  RequestQueue queue;
  InFlight in_flight;
  CostModel attention_cost;
  LaneCount lane_count;
  SchedulerStats stats;
  std::unordered_map<RequestId, Sequence*> requests;  ///< that will get further events
  std::unordered_map<const Sequence*, std::unique_ptr<Sequence>> sequences;
};

}  // namespace fastfd::scheduler
