#include "scheduler/planner.h"

#include <algorithm>

#include "fastfd/core/check.h"

namespace fastfd::scheduler {
namespace {

/// Lanes are dealt out anew when one has been this much longer than the mean ...
constexpr double kMaxLaneImbalance = 0.25;
/// ... for so many plans in a row: arrivals even the lanes out for nothing, a barrier costs a
/// bubble.
constexpr std::uint32_t kUnbalancedSteps = 16;
/// How often `auto` thinks about the number of lanes, in plans.
constexpr std::uint32_t kLaneChoiceInterval = 64;

/// Pages that the row needs for the next `horizon + 1` tokens it feeds.
std::uint32_t pages_needed(const Sequence& row, std::uint32_t horizon, std::uint32_t page_size) {
  // The token at limit_len - 1 is the last one and never fed.
  const std::uint32_t last = std::min(row.next_position() + horizon, row.limit_len - 2);
  return last < row.page_capacity ? 0 : (last - row.page_capacity) / page_size + 1;
}

}  // namespace

std::optional<StepPlan> Planner::plan() {
  if (state_.in_flight.size() >= state_.credit()) {
    return std::nullopt;
  }
  bool secured = true;
  for (ServerRank rank = 0; rank < state_.servers.size(); ++rank) {
    secured = secure_decode_pages(rank) && secured;
  }
  if (!secured) {
    return std::nullopt;  // a commit will return the pages of those preempted
  }
  bool any_rows = false;
  for (ServerRank rank = 0; rank < state_.servers.size(); ++rank) {
    ServerState& server = state_.servers[rank];
    Scratch& scratch = scratch_[rank];
    scratch.appended.clear();
    for (Sequence* row : scratch.needs_page) {
      scratch.appended.emplace_back(row, server.ledger.append_page(row->lease));
      row->page_capacity += state_.options.page_size;
    }
    scratch.token_budget = state_.options.max_batched_tokens - server.lanes.num_rows();
    scratch.chunks.clear();
    continue_prompts(rank);
    if (!state_.queue.empty()) {
      scratch.expected_work = server.expected_work();
    }
    any_rows = any_rows || server.lanes.num_rows() > 0 || !scratch.chunks.empty();
  }
  while (Sequence* next = state_.queue.front()) {
    if (!admit(next)) {
      break;
    }
    any_rows = true;
  }
  if (!any_rows) {
    return std::nullopt;
  }
  const bool barrier = choose_lanes();
  return build(barrier);
}

/// Finds the rows that need a page now, and preempts while these and the needs of the next few
/// steps exceed what is free or on its way back: a victim's pages return only when its steps in
/// flight have committed. False: enough pages are on their way, but not here yet.
bool Planner::secure_decode_pages(ServerRank rank) {
  ServerState& server = state_.servers[rank];
  auto& needs_page = scratch_[rank].needs_page;
  const std::uint32_t page_size = state_.options.page_size;
  const std::uint32_t horizon = state_.credit() - 1;
  while (true) {
    needs_page.clear();
    std::uint32_t needed_soon = 0;
    for (LaneId b = 0; b < kMaxLanes; ++b) {
      for (Sequence* row : server.lanes.lane(b).rows) {
        if (row->next_position() + horizon < row->page_capacity) {
          continue;
        }
        if (row->next_position() >= row->page_capacity) {
          needs_page.push_back(row);
        }
        needed_soon += pages_needed(*row, horizon, page_size);
      }
    }
    const std::uint32_t available = server.ledger.num_available();
    if (needed_soon <= available) {
      return true;
    }
    std::uint32_t returning = 0;
    for (const Sequence* sequence : server.retired) {
      returning += server.ledger.num_sole_pages(sequence->lease);
    }
    Sequence* victim = needed_soon > available + returning ? choose_victim(server) : nullptr;
    if (victim != nullptr) {
      state_.preempt(victim);
      continue;
    }
    if (needs_page.size() <= available) {
      return true;
    }
    check(!server.retired.empty(), "the oldest sequence has no page and nobody will return one");
    return false;
  }
}

/// Lowest priority, then latest arrival; never the oldest; and nobody who was preempted before
/// while a later arrival is still there to be taken instead.
Sequence* Planner::choose_victim(const ServerState& server) const {
  const Sequence* oldest = nullptr;
  const Sequence* latest = nullptr;
  const auto for_each = [&server](const auto& visit) {
    for (LaneId b = 0; b < kMaxLanes; ++b) {
      std::for_each(server.lanes.lane(b).rows.begin(), server.lanes.lane(b).rows.end(), visit);
    }
    std::for_each(server.prefilling.begin(), server.prefilling.end(), visit);
  };
  for_each([&](const Sequence* sequence) {
    if (oldest == nullptr || sequence->arrival_order < oldest->arrival_order) {
      oldest = sequence;
    }
    if (latest == nullptr || sequence->arrival_order > latest->arrival_order) {
      latest = sequence;
    }
  });
  Sequence* victim = nullptr;
  for_each([&](Sequence* sequence) {
    const bool is_protected =
        sequence == oldest || (sequence->ever_preempted && sequence != latest);
    if (is_protected) {
      return;
    }
    if (victim == nullptr || sequence->priority < victim->priority ||
        (sequence->priority == victim->priority &&
         sequence->arrival_order > victim->arrival_order)) {
      victim = sequence;
    }
  });
  return victim;
}

void Planner::add_chunk(ServerRank rank, Sequence* sequence) {
  Scratch& scratch = scratch_[rank];
  const std::uint32_t left = sequence->prefill_len - sequence->planned_kv;
  const std::uint32_t num_tokens =
      std::min({left, state_.options.prefill_chunk, scratch.token_budget});
  if (num_tokens > 0) {
    scratch.token_budget -= num_tokens;
    scratch.chunks.push_back({sequence, sequence->planned_kv, num_tokens, num_tokens == left});
  }
}

void Planner::continue_prompts(ServerRank rank) {
  for (Sequence* sequence : state_.servers[rank].prefilling) {
    add_chunk(rank, sequence);
  }
}

/// Pages of the leading blocks that the server has, cached or of the request whose other choice
/// this one is; returns how many of them nobody holds.
/// At least one token is left to compute, because the first sampled token needs its hidden state.
std::uint32_t Planner::find_hits(Sequence& sequence, ServerRank rank,
                                 std::vector<PageId>& pages) const {
  pages.clear();
  if (const Sequence* parent = sequence.fork_parent;
      parent != nullptr && parent->lease.server == rank) {
    const std::uint32_t num_full = (sequence.prompt_len - 1) / state_.options.page_size;
    pages.assign(parent->lease.pages.begin(), parent->lease.pages.begin() + num_full);
    return 0;
  }
  if (!state_.options.prefix_cache) {
    return 0;
  }
  const PrefixCache& cache = state_.servers[rank].ledger.cache();
  const auto num_tokens = static_cast<std::uint32_t>(sequence.tokens.size()) - 1;
  sequence.extend_block_keys(cache, num_tokens);
  const std::uint32_t num_blocks = num_tokens / cache.block_size();
  std::uint32_t num_idle = 0;
  for (std::uint32_t block = 0; block < num_blocks; ++block) {
    const auto page = cache.find(sequence.block_keys[block]);
    if (!page) {
      break;
    }
    pages.push_back(*page);
    num_idle += cache.is_idle(*page) ? 1 : 0;
  }
  return num_idle;
}

/// The best server that can take the sequence now, with all pages of its prompt; nullopt if none.
std::optional<ServerRank> Planner::find_server(Sequence& sequence) {
  const auto num_tokens = static_cast<std::uint32_t>(sequence.tokens.size());
  const std::uint32_t page_size = state_.options.page_size;
  const std::uint32_t num_pages = (num_tokens + page_size - 1) / page_size;
  loads_.assign(state_.servers.size(), {});
  bool any_room = false;
  for (ServerRank rank = 0; rank < state_.servers.size(); ++rank) {
    const ServerState& server = state_.servers[rank];
    LaneWork work = scratch_[rank].expected_work;
    // An idle server counts with its fixed part: on an almost idle cluster a prefix hit is worth
    // more than an even spread.
    const double fixed = state_.attention_cost.fixed();
    loads_[rank].time = fixed + state_.attention_cost.marginal(work);
    work.rows += 1;
    work.context += num_tokens;
    loads_[rank].time_with = fixed + state_.attention_cost.marginal(work);
    if (server.ledger.num_free_slots() == 0 || scratch_[rank].token_budget == 0 ||
        server.num_sequences() >= state_.options.max_batched_tokens) {
      continue;
    }
    const std::uint32_t num_idle_hits = find_hits(sequence, rank, hit_pages_);
    const auto num_hits = static_cast<std::uint32_t>(hit_pages_.size());
    // A page for each of those who run already, or the newcomer would soon be preempted again.
    const std::uint32_t wanted = num_pages - num_hits + num_idle_hits + server.num_sequences();
    loads_[rank].has_room = wanted <= server.ledger.num_available();
    loads_[rank].hit_tokens = num_hits * page_size;
    if (const Sequence* parent = sequence.fork_parent;
        parent != nullptr && parent->lease.server == rank) {
      loads_[rank].hit_tokens = sequence.prompt_len - 1;  // the partial page is copied
    }
    any_room = any_room || loads_[rank].has_room;
  }
  return any_room ? std::optional(choose_server(loads_)) : std::nullopt;
}

/// Gives the front of the queue a slot and all pages of its prompt; false if it has to wait.
bool Planner::admit(Sequence* sequence) {
  if (state_.num_running >= state_.options.max_sequences) {
    return false;
  }
  const auto chosen = find_server(*sequence);
  if (!chosen) {
    return false;
  }
  const ServerRank rank = *chosen;
  ServerState& server = state_.servers[rank];
  const auto num_tokens = static_cast<std::uint32_t>(sequence->tokens.size());
  const std::uint32_t page_size = state_.options.page_size;
  const std::uint32_t num_pages = (num_tokens + page_size - 1) / page_size;
  hit_pages_.clear();
  if (loads_[rank].hit_tokens > 0) {
    find_hits(*sequence, rank, hit_pages_);  // the last server looked at may be another one
  }
  state_.queue.remove(sequence);

  Lease& lease = sequence->lease;
  lease.server = rank;
  server.ledger.take_slot(lease);
  server.by_slot[lease.slot] = sequence;
  for (const PageId page : hit_pages_) {
    server.ledger.share_page(lease, page);
  }
  const auto num_hits = static_cast<std::uint32_t>(hit_pages_.size());
  const std::uint32_t hit_tokens = loads_[rank].hit_tokens;
  lease.named_pages = num_hits;
  while (lease.pages.size() < num_pages) {
    server.ledger.append_page(lease);
  }
  if (hit_tokens > num_hits * page_size) {
    server.ledger.hold_copy_source(lease, sequence->fork_parent->lease.pages[num_hits]);
    ++lease.named_pages;
    ++state_.stats.pages_copied;
  }
  State::leave_parent(*sequence);
  sequence->page_capacity = num_pages * page_size;
  sequence->prefill_len = num_tokens;
  sequence->planned_len = num_tokens;
  sequence->planned_kv = hit_tokens;
  sequence->committed_kv = hit_tokens;
  sequence->published_blocks = num_hits;
  sequence->needs_open = true;
  sequence->phase = Phase::kPrefill;
  if (!sequence->ever_admitted) {
    sequence->ever_admitted = true;
    sequence->num_cached_tokens = hit_tokens;
  }
  state_.stats.prompt_tokens_cached += hit_tokens;
  ++state_.num_running;
  server.prefilling.push_back(sequence);
  scratch_[rank].expected_work.rows += 1;
  scratch_[rank].expected_work.context += num_tokens;
  add_chunk(rank, sequence);
  return true;
}

/// True if this step is a barrier: the rows of all servers have been dealt out anew.
bool Planner::choose_lanes() {
  for (ServerRank rank = 0; rank < state_.servers.size(); ++rank) {
    const LaneTable& lanes = state_.servers[rank].lanes;
    LaneMask had_rows = 0;
    for (LaneId b = 0; b < kMaxLanes; ++b) {
      if (!lanes.lane(b).rows.empty() || !lanes.lane(b).leaves.empty()) {
        had_rows |= lane_bit(b);
      }
    }
    scratch_[rank].had_rows = had_rows;
  }
  std::uint32_t wanted = state_.num_lanes;
  if (state_.options.microbatches == 0 && ++steps_since_choice_ >= kLaneChoiceInterval) {
    steps_since_choice_ = 0;
    wanted = state_.lane_count.choose(wanted, state_.decode_load(), state_.attention_cost);
  }
  const bool unbalanced =
      std::any_of(state_.servers.begin(), state_.servers.end(), [this](const ServerState& server) {
        return server.lanes.imbalance(state_.num_lanes, state_.attention_cost) > kMaxLaneImbalance;
      });
  unbalanced_steps_ = unbalanced ? unbalanced_steps_ + 1 : 0;
  if (wanted == state_.num_lanes && unbalanced_steps_ < kUnbalancedSteps) {
    return false;
  }
  unbalanced_steps_ = 0;
  state_.num_lanes = wanted;
  for (ServerState& server : state_.servers) {
    server.lanes.repartition(wanted, state_.attention_cost);
  }
  ++state_.stats.lane_barriers;
  return true;
}

}  // namespace fastfd::scheduler
