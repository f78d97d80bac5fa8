#pragma once

/// Attention servers that only keep books. They apply step plans exactly as step_plan.h says, in a
/// random order between servers and lanes, and compute tokens by hashing everything that a sequence
/// reads from its KV pages, so that a page written by the wrong sequence changes the tokens (with
/// `recurrent_state`: everything that its slot was fed since it was opened). Every plan is checked
/// against PROTOCOL 1-3 when it is published; what breaks a rule is thrown.

#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "fastfd/core/step_plan.h"
#include "fastfd/scheduler/scheduler.h"

namespace fastfd::testing {

class ProtocolViolation : public std::logic_error {
 public:
  using std::logic_error::logic_error;
};

/// What a request must get, whatever happens around it.
struct ExpectedOutput {
  std::vector<TokenId> tokens;
  FinishReason finish = FinishReason::kNone;
};

class FakeCluster {
 public:
  static constexpr TokenId kVocabulary = 64;

  FakeCluster(const scheduler::SchedulerOptions& options, std::uint64_t seed);

  /// The tokens of `request` by definition, computed alone.
  static ExpectedOutput reference(const Request& request, std::uint32_t max_model_len);

  /// Checks the plan and hands it to the servers. Throws ProtocolViolation.
  void publish(const StepPlan& plan);

  /// Lets a random server run its next (step, lane). False: nothing to run.
  bool run_one();
  bool run_one(ServerRank server);
  /// A random result that was not delivered yet, in step order within one (server, lane).
  std::optional<LaneResult> deliver_one();
  /// The oldest result of that (server, lane), if it has run.
  std::optional<LaneResult> deliver(ServerRank server, LaneId lane);

  /// Published steps of which a result was not delivered.
  std::uint32_t num_uncommitted_steps() const;
  /// Abandons everything in flight and forgets all sequences; returns the results that were not
  /// delivered, as a slow network would bring them later.
  std::vector<LaneResult> begin_epoch(Epoch epoch);

 private:
  /// A sequence in a slot, as published plans describe it.
  struct Incarnation {
    SlotId slot = 0;
    Generation generation = 0;
    std::vector<PageId> pages;
    std::uint32_t next_position = 0;  ///< that a piece or the decode row feeds next
    std::uint32_t undelivered = 0;    ///< published (step, lane)s that name it
    StepId last_step = 0;             ///< that named it
    LaneId last_lane = 0;
    bool is_row = false;
    bool becomes_row = false;  ///< from the next step on
    LaneId lane = 0;
    StepId left_in = 0;      ///< step that named its leave
    bool lost_page = false;  ///< a page went to somebody else: must not be named any more
  };
  using IncarnationRef = std::shared_ptr<Incarnation>;

  struct Cell {
    bool written = false;
    TokenId token = kNoToken;
    StepId step = 0;
    LaneId lane = 0;
  };
  struct Page {
    std::vector<IncarnationRef> holders;
    IncarnationRef writer;
    bool read_only = false;  ///< given to somebody as a cached page
    StepId copied_in = 0;    ///< the newest step that copies from it, and its lane
    LaneId copied_by = 0;
    std::vector<Cell> cells;
  };

  /// What a server remembers of a slot while it runs plans.
  struct Slot {
    bool open = false;
    Generation generation = 0;
    std::uint32_t prompt_len = 0;
    SamplingParams sampling;
    std::vector<PageId> pages;
    std::uint32_t next_position = 0;
    TokenId last_token = kNoToken;
    std::vector<TokenId> outputs;  ///< only kept for penalties
    std::uint64_t recurrent_state = 0;
  };
  struct Work {
    StepId step = 0;
    Epoch epoch = 0;
    bool barrier = false;
    AttentionLanePlan plan;
    std::vector<IncarnationRef> named;
  };
  struct Outgoing {
    LaneResult result;
    std::vector<IncarnationRef> named;
  };

  struct Server {
    // As published.
    std::map<SlotId, IncarnationRef> incarnations;
    std::array<std::vector<IncarnationRef>, kMaxLanes> rows;
    std::vector<Page> pages;
    std::uint32_t num_lanes = 0;
    // As executed.
    std::vector<Slot> slots;
    std::array<std::vector<SlotId>, kMaxLanes> executed_rows;
    std::deque<Work> queue;
    std::array<std::deque<Outgoing>, kMaxLanes> outgoing;
    std::array<StepId, kMaxLanes> delivered_step{};  ///< newest step whose result was delivered
  };

  // Publishing.
  void publish_server(Server& server, const AttentionStepPlan& plan);
  void publish_absent(const Server& server) const;
  void publish_rows(Server& server, const AttentionStepPlan& plan);
  void publish_leaves(Server& server, const AttentionLanePlan& lane, StepId step);
  void publish_open(Server& server, const SlotOpen& open, StepId step, LaneId lane);
  void publish_copy(Server& server, const PageCopy& copy, const IncarnationRef& to, StepId step,
                    LaneId lane);
  void publish_lane(Server& server, const AttentionStepPlan& plan, const AttentionLanePlan& lane,
                    Work& work);
  void publish_piece(Server& server, const AttentionLanePlan& lane, const PrefillPiece& piece,
                     Work& work, StepId step);
  void check_participants(const StepPlan& plan) const;
  void assign_page(Server& server, PageId page, const IncarnationRef& to);
  void name(const IncarnationRef& incarnation, Work& work, LaneId lane);
  static Incarnation& find(Server& server, SlotId slot, Generation generation);

  // Execution.
  void execute(Server& server, ServerRank rank, const Work& work, LaneResult& result);
  SampledToken feed(Server& server, SlotId slot, TokenId token, StepId step, LaneId lane,
                    bool sample);

  scheduler::SchedulerOptions options_;
  std::mt19937_64 random_;
  std::vector<Server> servers_;
  Epoch epoch_ = 1;
  StepId last_step_ = 0;
};

}  // namespace fastfd::testing
