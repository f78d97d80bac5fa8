#pragma once

/// One request on its way through the cluster, and what it holds there.

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "fastfd/core/ids.h"
#include "fastfd/core/request.h"
#include "scheduler/prefix_cache.h"

namespace fastfd::scheduler {

using LaneMask = std::uint8_t;  ///< bit b is lane b
static_assert(kMaxLanes <= 8);

constexpr LaneMask lane_bit(LaneId lane) { return static_cast<LaneMask>(1U << lane); }

/// `busy_until`: the last published (step, lanes) of a server that names something. Step 0: none.
struct Ticket {
  StepId step = 0;
  LaneMask lanes = 0;
};

/// What a sequence holds on one attention server. Slot and pages are always named together, by the
/// steps that run the sequence, so one ticket guards them all; a shared page has a lease from every
/// sequence that reads it, and stays until the last of them is returned.
struct Lease {
  ServerRank server = 0;
  SlotId slot = 0;
  Generation generation = 0;
  std::vector<PageId> pages;      ///< block i of the sequence lives in pages[i]
  std::uint32_t named_pages = 0;  ///< how many of them plans have named so far
  /// Held besides `pages` until the step that copies it into the last named page has committed.
  std::optional<PageId> copy_source;
  Ticket busy_until;
};

enum class Phase : std::uint8_t {
  kQueued,     ///< holds nothing
  kPrefill,    ///< its prompt (and what it emitted before a preemption) is being computed
  kDecode,     ///< a decode row of its home lane
  kFinishing,  ///< every token it may have is planned; the last ones are in flight
  kDraining,   ///< preempted; still receives its tokens in flight, then is kQueued again
  kEnded,      ///< ended late or aborted; waits only for its lease to be returned
};

struct Sequence {
  // Read for every decode row in every plan: kept together.
  Phase phase = Phase::kQueued;
  bool leave_pending = false;     ///< the server has it as a decode row; no plan said otherwise yet
  LaneId home_lane = 0;           ///< of its decode row
  std::uint32_t planned_len = 0;  ///< tokens, those sampled by published steps included
  std::uint32_t limit_len = 0;    ///< tokens at which it ends with kLength
  std::uint32_t page_capacity = 0;  ///< tokens that fit lease.pages
  std::uint32_t row_index = 0;      ///< in its lane's rows

  RequestId id = 0;
  std::int32_t priority = 0;
  std::uint64_t arrival_order = 0;  ///< order of submit
  SamplingParams sampling;
  std::string cache_salt;

  std::vector<TokenId> tokens;  ///< prompt, then every token emitted; all committed
  std::uint32_t prompt_len = 0;
  std::uint32_t num_cached_tokens = 0;  ///< prefix hit of the client's prompt, for usage
  bool ever_admitted = false;
  bool ever_preempted = false;

  /// Whose prompt it shares, until it is admitted or that one's lease is returned; it waits
  /// outside the queue while that prompt is not committed. `forks` is the other direction.
  Sequence* fork_parent = nullptr;
  std::vector<Sequence*> forks;
  bool waits_for_parent = false;

  Lease lease;
  bool needs_open = false;         ///< the next plan that names it opens its slot
  std::uint32_t prefill_len = 0;   ///< tokens.size() when it was admitted
  std::uint32_t planned_kv = 0;    ///< prompt positions planned so far
  std::uint32_t committed_kv = 0;  ///< positions whose K and V committed steps have written
  std::uint32_t published_blocks = 0;
  std::vector<BlockKey> block_keys;  ///< of full blocks of `tokens`, made on demand

  std::uint32_t num_generated() const {
    return static_cast<std::uint32_t>(tokens.size()) - prompt_len;
  }
  /// Position that its decode row feeds in the next plan.
  std::uint32_t next_position() const { return planned_len - 1; }
  /// Its prompt can be shared.
  bool has_committed_prompt() const { return committed_kv >= prompt_len; }
  bool is_running() const { return phase == Phase::kPrefill || phase == Phase::kDecode; }

  /// Makes block_keys cover every full block of the first `num_tokens` tokens.
  void extend_block_keys(const PrefixCache& cache, std::uint32_t num_tokens);

  /// What ends the sequence once `token` has joined it; kNone if it goes on.
  FinishReason finish_after(TokenId token) const;

  /// Back to holding nothing; the tokens stay.
  void reset_to_queued();
};

}  // namespace fastfd::scheduler
