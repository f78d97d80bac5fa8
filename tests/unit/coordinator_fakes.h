#pragma once

/// Servers and clients for tests of the engine: they follow plans to the letter but compute
/// nothing. The token at position p of every sequence is p, so a lost, repeated or misplaced token
/// shows in the stream.

#include <algorithm>
#include <array>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "fastfd/control_plane/member_link.h"
#include "fastfd/core/engine_client.h"
#include "fastfd/core/step_plan.h"

namespace fastfd::testing {

/// How long something that must happen may take; only ever waited out by a failing test.
inline constexpr std::chrono::seconds kPatience{20};

/// The books of one attention server. Not thread-safe.
class PlanFollower {
 public:
  std::vector<LaneResult> run(const AttentionStepPlan& plan, ServerRank rank) {
    std::vector<LaneResult> results;
    for (const auto& lane : plan.lanes) {
      LaneResult result;
      result.epoch = plan.epoch;
      result.step = plan.step;
      result.attention_rank = rank;
      result.lane = lane.lane;
      result.num_rows = lane.num_rows;
      result.compute_us = 100.0F;
      run_lane(lane, &result);
      if (lane.num_rows > 0) {
        results.push_back(std::move(result));
      }
    }
    return results;
  }

 private:
  struct Slot {
    Generation generation = 0;
    std::uint32_t next_position = 0;
  };

  void run_lane(const AttentionLanePlan& lane, LaneResult* result) {
    auto& rows = rows_[lane.lane];
    if (lane.rows) {
      rows.clear();
      for (const auto& row : *lane.rows) {
        rows.push_back(row.slot);
        slots_[row.slot] = {row.generation, row.position};
      }
    }
    for (const SlotId leaver : lane.leaves) {
      std::erase(rows, leaver);
    }
    for (const auto& open : lane.opens) {
      slots_[open.slot] = {open.generation, 0};
    }
    for (const SlotId row : rows) {
      feed(row, 1, true, result);
    }
    for (const auto& piece : lane.pieces) {
      slots_[piece.slot].next_position = piece.start_position;
      feed(piece.slot, static_cast<std::uint32_t>(piece.tokens.size()), piece.samples, result);
      if (piece.samples) {
        rows.push_back(piece.slot);
      }
    }
  }

  void feed(SlotId id, std::uint32_t num_tokens, bool samples, LaneResult* result) {
    Slot& slot = slots_[id];
    slot.next_position += num_tokens;
    if (samples) {
      result->tokens.push_back({id,
                                slot.generation,
                                slot.next_position,
                                static_cast<TokenId>(slot.next_position),
                                0.0F,
                                {}});
    }
  }

  std::array<std::vector<SlotId>, kMaxLanes> rows_;
  std::map<SlotId, Slot> slots_;
};

/// A client of the engine.
class TokenCollector final : public TokenSink {
 public:
  struct Stream {
    std::vector<TokenId> tokens;
    FinishReason finish = FinishReason::kNone;
    std::string error;
  };

  void on_events(std::vector<TokenEvent> events) override {
    std::function<void()> hook;
    {
      const std::lock_guard lock(mutex_);
      ++num_calls_;
      largest_batch_ = std::max(largest_batch_, events.size());
      for (auto& event : events) {
        Stream& stream = streams_[event.request];
        if (event.token != kNoToken) {
          stream.tokens.push_back(event.token);
        }
        if (event.finish != FinishReason::kNone) {
          stream.finish = event.finish;
          stream.error = event.error;
        }
      }
      hook = hook_;
    }
    changed_.notify_all();
    if (hook) {
      hook();
    }
  }

  /// Called on the engine's thread in every on_events.
  void set_hook(std::function<void()> hook) {
    const std::lock_guard lock(mutex_);
    hook_ = std::move(hook);
  }

  /// False if the stream does not end.
  bool wait_finished(RequestId id) {
    return wait([&] { return streams_[id].finish != FinishReason::kNone; });
  }
  bool wait_tokens(RequestId id, std::size_t count) {
    return wait([&] { return streams_[id].tokens.size() >= count; });
  }
  Stream stream(RequestId id) {
    const std::lock_guard lock(mutex_);
    return streams_[id];
  }
  std::size_t num_calls() {
    const std::lock_guard lock(mutex_);
    return num_calls_;
  }
  std::size_t largest_batch() {
    const std::lock_guard lock(mutex_);
    return largest_batch_;
  }

 private:
  template <typename Condition>
  bool wait(Condition condition) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, kPatience, condition);
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<RequestId, Stream> streams_;
  std::size_t num_calls_ = 0;
  std::size_t largest_batch_ = 0;
  std::function<void()> hook_;
};

}  // namespace fastfd::testing
