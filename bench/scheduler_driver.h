#pragma once

/// Keeps a scheduler under a constant load for benchmarks: as many sequences as asked for, a given
/// share of them replaced in every step, and results that come back as late as the credit allows.
/// Tokens are made up; the servers' books are kept only as far as results need them.

#include <array>
#include <cstdint>
#include <deque>
#include <optional>
#include <random>
#include <stdexcept>
#include <utility>
#include <vector>

#include "fastfd/core/step_plan.h"
#include "fastfd/scheduler/scheduler.h"

namespace fastfd::bench {

struct SchedulerLoad {
  std::uint32_t num_sequences = 1024;
  std::uint32_t prompt_tokens = 32;
  std::uint32_t output_tokens = 1000;  ///< on average; a step replaces 1/output_tokens of all
  std::uint32_t num_attention_servers = 2;
  std::uint32_t microbatches = 2;
};

class SchedulerDriver {
 public:
  explicit SchedulerDriver(const SchedulerLoad& load)
      : load_(load),
        options_(options_for(load)),
        scheduler_(options_),
        servers_(load.num_attention_servers) {
    // The first ones end at different times, as if they had come one by one.
    for (std::uint32_t i = 0; i < load.num_sequences; ++i) {
      submit(1 + static_cast<std::uint32_t>(random_() % (2 * load_.output_tokens)));
    }
    while (scheduler_.stats().running + 2 * load.num_sequences / load.output_tokens <
           load.num_sequences) {
      step();
    }
  }

  scheduler::Scheduler& scheduler() { return scheduler_; }

  /// Call it, timed or not, when ready_to_plan(); hand the plan to take().
  std::optional<StepPlan> plan() { return scheduler_.plan(); }

  /// The servers run the plan: its results are made, and wait.
  void take(const StepPlan& plan) {
    for (const auto& [rank, server_plan] : plan.attention) {
      for (const AttentionLanePlan& lane : server_plan.lanes) {
        run(plan, rank, lane);
      }
    }
    steps_.push_back(plan.step);
  }

  bool must_commit() const { return steps_.size() > options_.plan_ahead; }

  /// Results of the oldest step, for commit(); replaces what ended by new requests.
  std::vector<LaneResult> results_of_oldest_step() {
    std::vector<LaneResult> results;
    const StepId step = steps_.front();
    steps_.pop_front();
    while (!results_.empty() && results_.front().step == step) {
      results.push_back(std::move(results_.front()));
      results_.pop_front();
    }
    return results;
  }

  std::size_t commit(const std::vector<LaneResult>& results) {
    std::size_t num_events = 0;
    for (const LaneResult& result : results) {
      const auto events = scheduler_.commit(result);
      num_events += events.size();
      for (const TokenEvent& event : events) {
        num_ended_ += event.finish != FinishReason::kNone ? 1 : 0;
      }
    }
    return num_events;
  }

  void replace_ended() {
    for (; num_ended_ > 0; --num_ended_) {
      submit(load_.output_tokens / 2 + 1 +
             static_cast<std::uint32_t>(random_() % load_.output_tokens));
    }
  }

  /// One whole step, for warming up.
  void step() {
    if (must_commit()) {
      commit(results_of_oldest_step());
      replace_ended();
    }
    const auto plan = scheduler_.plan();
    if (!plan) {
      throw std::logic_error("the driver's load left the scheduler without work");
    }
    take(*plan);
  }

 private:
  struct Row {
    SlotId slot;
    Generation generation;
    std::uint32_t next_position;
  };
  struct Server {
    std::array<std::vector<Row>, kMaxLanes> rows;
  };

  static scheduler::SchedulerOptions options_for(const SchedulerLoad& load) {
    scheduler::SchedulerOptions options;
    options.num_attention_servers = load.num_attention_servers;
    options.max_model_len = load.prompt_tokens + 2 * load.output_tokens + 1;
    const std::uint32_t pages_each = (options.max_model_len + 15) / 16 + 1;
    options.pages_per_server =
        2 * load.num_sequences * pages_each / load.num_attention_servers;  // twice what is in use
    options.max_sequences = load.num_sequences;
    options.max_batched_tokens = 16384;
    options.max_queued_requests = 2 * load.num_sequences;
    options.plan_ahead = 2;
    options.microbatches = load.microbatches;
    return options;
  }

  void submit(std::uint32_t max_tokens) {
    Request request;
    request.id = ++last_id_;
    request.max_tokens = max_tokens;
    request.sampling.stop_token_ids = {1, 2};
    request.prompt.reserve(load_.prompt_tokens);
    for (std::uint32_t i = 0; i < load_.prompt_tokens; ++i) {
      request.prompt.push_back(static_cast<TokenId>(3 + random_() % 50000));
    }
    if (!scheduler_.submit(std::move(request))) {
      throw std::logic_error("the driver's request was refused");
    }
  }

  void run(const StepPlan& plan, ServerRank rank, const AttentionLanePlan& lane) {
    auto& rows = servers_[rank].rows[lane.lane];
    if (lane.rows) {
      rows.clear();
      for (const DecodeRow& row : *lane.rows) {
        rows.push_back({row.slot, row.generation, row.position});
      }
    }
    if (!lane.leaves.empty()) {
      leaving_.assign(2 * load_.num_sequences, false);
      for (const SlotId slot : lane.leaves) {
        leaving_[slot] = true;
      }
      std::erase_if(rows, [this](const Row& row) { return leaving_[row.slot]; });
    }
    LaneResult result;
    result.epoch = plan.epoch;
    result.step = plan.step;
    result.attention_rank = rank;
    result.lane = lane.lane;
    result.num_rows = lane.num_rows;
    result.compute_us = 100.0F + static_cast<float>(lane.num_rows);
    result.overlapped = true;
    result.tokens.reserve(rows.size() + lane.pieces.size());
    for (Row& row : rows) {
      add_token(result, row);
      ++row.next_position;
    }
    for (const PrefillPiece& piece : lane.pieces) {
      if (piece.samples) {
        const auto end = piece.start_position + static_cast<std::uint32_t>(piece.tokens.size());
        add_token(result, {piece.slot, piece.generation, end - 1});
        rows.push_back({piece.slot, piece.generation, end});
      }
    }
    if (lane.num_rows > 0) {
      results_.push_back(std::move(result));
    }
  }

  void add_token(LaneResult& result, const Row& row) {
    SampledToken& sampled = result.tokens.emplace_back();
    sampled.slot = row.slot;
    sampled.generation = row.generation;
    sampled.position = row.next_position + 1;
    sampled.token = static_cast<TokenId>(3 + (row.slot * 31 + row.next_position) % 50000);
  }

  SchedulerLoad load_;
  scheduler::SchedulerOptions options_;
  scheduler::Scheduler scheduler_;
  std::vector<Server> servers_;
  std::deque<LaneResult> results_;
  std::deque<StepId> steps_;
  std::vector<bool> leaving_;
  std::mt19937_64 random_{1};
  RequestId last_id_ = 0;
  std::size_t num_ended_ = 0;
};

}  // namespace fastfd::bench
