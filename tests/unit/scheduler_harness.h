#pragma once

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "fastfd/scheduler/scheduler.h"
#include "support/fake_cluster.h"

namespace fastfd::scheduler {

/// A scheduler and its fake cluster, driven by hand: nothing happens unless a test says so.
struct Harness {
  explicit Harness(const SchedulerOptions& scheduler_options)
      : options(scheduler_options), scheduler(options), cluster(options, 1) {}

  static SchedulerOptions small_options() {
    SchedulerOptions options;
    options.pages_per_server = 64;
    options.page_size = 8;
    options.max_sequences = 8;
    options.max_batched_tokens = 128;
    options.prefill_chunk = 64;
    options.max_model_len = 256;
    options.plan_ahead = 2;
    options.microbatches = 1;
    return options;
  }

  /// `prompt_len` tokens that differ between ids from the first one on.
  static Request request(RequestId id, std::uint32_t prompt_len, std::uint32_t max_tokens) {
    Request request;
    request.id = id;
    for (std::uint32_t i = 0; i < prompt_len; ++i) {
      request.prompt.push_back(static_cast<TokenId>((id * 7 + i * (1 + id % 5)) % 64));
    }
    request.sampling.seed = id;
    request.max_tokens = max_tokens;
    return request;
  }

  Status submit(RequestId id, std::uint32_t prompt_len, std::uint32_t max_tokens) {
    return scheduler.submit(request(id, prompt_len, max_tokens));
  }

  /// Plans, and hands the plan to the cluster, which checks it.
  std::optional<StepPlan> plan() {
    auto plan = scheduler.plan();
    if (plan) {
      cluster.publish(*plan);
    }
    return plan;
  }

  void run() {
    while (cluster.run_one()) {
    }
  }

  /// Runs whatever is published and commits the oldest result of one lane.
  std::vector<TokenEvent> commit(ServerRank server, LaneId lane) {
    run();
    const auto result = cluster.deliver(server, lane);
    return keep(result ? scheduler.commit(*result) : std::vector<TokenEvent>());
  }

  /// Runs and commits all that is in flight.
  std::vector<TokenEvent> commit_all() {
    run();
    std::vector<TokenEvent> events;
    while (const auto result = cluster.deliver_one()) {
      for (TokenEvent& event : keep(scheduler.commit(*result))) {
        events.push_back(std::move(event));
      }
    }
    return events;
  }

  /// Plans and commits one step at a time until nothing is left to do.
  void drain() {
    while (!scheduler.idle()) {
      plan();
      commit_all();
    }
  }

  std::vector<TokenEvent> keep(std::vector<TokenEvent> events) {
    for (const TokenEvent& event : events) {
      if (event.token != kNoToken) {
        tokens[event.request].push_back(event.token);
      }
      if (event.finish != FinishReason::kNone) {
        finish[event.request] = event.finish;
      }
    }
    return events;
  }

  std::uint32_t free_pages(ServerRank server = 0) const {
    return scheduler.stats().free_pages[server];
  }

  SchedulerOptions options;
  Scheduler scheduler;
  testing::FakeCluster cluster;
  std::map<RequestId, std::vector<TokenId>> tokens;
  std::map<RequestId, FinishReason> finish;
};

inline const AttentionLanePlan* find_lane(const StepPlan& plan, ServerRank server, LaneId lane) {
  for (const auto& [rank, server_plan] : plan.attention) {
    for (const AttentionLanePlan& lane_plan : server_plan.lanes) {
      if (rank == server && lane_plan.lane == lane) {
        return &lane_plan;
      }
    }
  }
  return nullptr;
}

/// Every SlotOpen of the plan; the sampling seed names the request (see Harness::request).
inline std::map<RequestId, SlotOpen> opens_of(const StepPlan& plan) {
  std::map<RequestId, SlotOpen> opens;
  for (const auto& [rank, server] : plan.attention) {
    for (const AttentionLanePlan& lane : server.lanes) {
      for (const SlotOpen& open : lane.opens) {
        opens[open.sampling.seed] = open;
      }
    }
  }
  return opens;
}

inline std::vector<std::pair<LaneId, PrefillPiece>> pieces_of(const StepPlan& plan) {
  std::vector<std::pair<LaneId, PrefillPiece>> pieces;
  for (const auto& [rank, server] : plan.attention) {
    for (const AttentionLanePlan& lane : server.lanes) {
      for (const PrefillPiece& piece : lane.pieces) {
        pieces.emplace_back(lane.lane, piece);
      }
    }
  }
  return pieces;
}

}  // namespace fastfd::scheduler
