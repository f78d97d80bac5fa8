#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "fastfd/core/ids.h"
#include "fastfd/core/request.h"
#include "fastfd/core/status.h"
#include "fastfd/core/step_plan.h"

namespace fastfd::scheduler {

struct SchedulerOptions {
  std::uint32_t num_attention_servers = 1;
  std::uint32_t pages_per_server = 2048;  ///< 0: not known yet, so no request fits
  std::uint32_t page_size = 16;
  std::uint32_t max_sequences = 64;        ///< running at once, whole cluster
  std::uint32_t max_batched_tokens = 512;  ///< rows of one step on one attention server
  std::uint32_t prefill_chunk = 256;       ///< most prompt tokens of one sequence in one step
  std::uint32_t max_model_len = 2048;
  std::uint32_t max_queued_requests = 1024;
  std::uint32_t plan_ahead = 2;    ///< 1..3
  std::uint32_t microbatches = 0;  ///< lanes 1..4; 0: chosen by measured times
  bool overlapped = true;          ///< false: the plain loop, one step in flight
  bool prefix_cache = true;
  /// The model keeps state of a sequence that its pages don't hold, and that exists at its newest
  /// token only: nobody starts behind a prefix that another sequence computed, be it cached
  /// (`prefix_cache` is off then) or of another choice of the same prompt.
  bool recurrent_state = false;
  bool use_graphs = false;  ///< lanes of decode rows alone are replayed from captured graphs
  /// All participants of a lane get the bucket of the largest: where each runs the experts of all
  /// (co-located servers), its bucket says how many rows there can be.
  bool uniform_buckets = false;
  std::uint32_t placement_version = 1;  ///< of the expert placement, named by every plan
  /// Of the model; turns a lane's time into a layer's for `microbatches: 0` and for the predicted
  /// layer time. 0: inferred from the layers that FfnLoad counts.
  std::uint32_t num_layers = 0;
};

struct SchedulerStats {
  std::uint64_t steps_planned = 0;
  std::uint64_t steps_committed = 0;
  std::uint64_t tokens_generated = 0;  ///< emitted to clients
  std::uint64_t tokens_dropped = 0;    ///< computed past an end that was seen late
  std::uint64_t prompt_tokens_computed = 0;
  std::uint64_t prompt_tokens_cached = 0;
  std::uint64_t pages_copied = 0;  ///< partial pages of a prompt with several choices
  std::uint64_t preemptions = 0;
  std::uint64_t lane_barriers = 0;  ///< bubbles by re-partitioning lanes
  std::uint64_t requests_finished = 0;
  std::uint64_t overlapped_steps =
      0;  ///< lane 0 began before the last lane of the step before ended
  std::uint64_t multi_lane_steps = 0;  ///< committed steps that could have overlapped
  std::uint32_t queued = 0;
  std::uint32_t running = 0;
  std::uint32_t num_lanes = 1;              ///< in use; those without rows stay out of the plans
  std::vector<std::uint32_t> free_pages;    ///< per attention server, cached blocks excluded
  std::vector<std::uint32_t> cached_pages;  ///< per attention server, held by no sequence
  std::vector<std::uint32_t> free_slots;    ///< per attention server, named by no step in flight
  /// One layer of a decode step with what runs now, microseconds: T_a and T_f of one lane, T_c, and
  /// max(B T_a, B T_f, T_a + T_f + T_c). Zeros until both pools have been measured.
  double attention_layer_us = 0;
  double ffn_layer_us = 0;
  double transfer_us = 0;
  double predicted_layer_us = 0;
};

/// Continuous batching one step ahead of the results: queue, admission, page ledger, prefix cache,
/// placement, lanes. Knows no device, no network, no clock but the times in requests and results.
/// Not thread-safe: the engine's thread owns it.
///
///     while (auto plan = scheduler.plan()) publish(*plan);     // at most 1 + plan_ahead in flight
///     for (auto& event : scheduler.commit(result)) emit(event);
class Scheduler {
 public:
  explicit Scheduler(const SchedulerOptions& options);
  ~Scheduler();
  Scheduler(Scheduler&&) noexcept;
  Scheduler& operator=(Scheduler&&) noexcept;

  /// kInvalidArgument if the request can never run, kResourceExhausted if the queue is full.
  Status submit(Request request);

  /// The sequence is in no later plan; its pages return when the published steps that name them
  /// have committed. No further events. Unknown ids are ignored.
  void abort(RequestId id);

  /// The next step, or nullopt when there is no credit or nothing to run.
  std::optional<StepPlan> plan();

  /// Takes one lane's result. Results of another epoch, or that name a generation the slot does
  /// not have any more, are dropped. Events come in position order.
  std::vector<TokenEvent> commit(const LaneResult& result);

  /// A pool's measured times, for `microbatches: 0` and for cutting chunks over lanes.
  void observe(const FfnLoad& load);

  /// The membership changed: every published step is abandoned. All requests that were running get
  /// a kError event with `reason`; queued ones stay. Slots, pages and cache start empty under
  /// `epoch`.
  std::vector<TokenEvent> begin_epoch(Epoch epoch, const std::string& reason);

  Epoch epoch() const;
  /// No request queued or running and no published step uncommitted.
  bool idle() const;
  bool has_request(RequestId id) const;
  SchedulerStats stats() const;

  /// Slots each attention server must have room for: some wait for their last step to commit.
  static std::uint32_t slots_per_server(const SchedulerOptions& options);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace fastfd::scheduler
