#include "scheduler/committer.h"

#include <algorithm>
#include <bit>

namespace fastfd::scheduler {
namespace {

constexpr const char* kNoTokenError =
    "The logits of the request's next token are NaN or infinite, or leave no token to choose; "
    "check the model's weights, or logit_bias and min_tokens of the request.";

}  // namespace

std::vector<TokenEvent> Committer::commit(const LaneResult& result) {
  std::vector<TokenEvent> events;
  if (result.epoch != state_.epoch) {
    return events;
  }
  StepInFlight* step = state_.in_flight.awaiting(result);
  if (step == nullptr) {
    return events;
  }
  if (state_.in_flight.is_blocked(*step, result.attention_rank, result.lane)) {
    held_.push_back(result);
    return events;
  }
  apply(*step, result, events);
  for (std::size_t i = 0; i < held_.size();) {
    step = state_.in_flight.awaiting(held_[i]);
    if (step != nullptr &&
        state_.in_flight.is_blocked(*step, held_[i].attention_rank, held_[i].lane)) {
      ++i;
      continue;
    }
    const LaneResult ready = std::move(held_[i]);
    held_.erase(held_.begin() + static_cast<std::ptrdiff_t>(i));
    if (step != nullptr) {  // a duplicate may have been held
      apply(*step, ready, events);
    }
    i = 0;  // it may have been what another one waited for
  }
  return events;
}

void Committer::apply(StepInFlight& step, const LaneResult& result,
                      std::vector<TokenEvent>& events) {
  const ServerRank rank = result.attention_rank;
  commit_pieces(step.servers[rank], result.lane);
  events.reserve(events.size() + result.tokens.size());
  for (const SampledToken& sampled : result.tokens) {
    commit_token(rank, sampled, events);
  }
  measure(step, result);
  if (InFlight::commit(step, rank, result.lane)) {
    ++state_.stats.steps_committed;
    state_.stats.multi_lane_steps += step.could_overlap ? 1 : 0;
    state_.stats.overlapped_steps += step.could_overlap && step.did_overlap ? 1 : 0;
  }
  state_.in_flight.pop_committed();
  state_.collect(rank);
}

void Committer::commit_pieces(const ServerStep& server, LaneId lane) {
  for (const PieceInFlight& piece : server.pieces) {
    if (piece.lane == lane && piece.sequence->phase != Phase::kEnded) {
      Sequence& sequence = *piece.sequence;
      sequence.committed_kv = piece.end_position;
      publish_blocks(sequence);
      state_.servers[sequence.lease.server].ledger.release_copy_source(sequence.lease);
      if (sequence.has_committed_prompt()) {
        state_.queue_forks(sequence);
      }
    }
  }
}

void Committer::commit_token(ServerRank server, const SampledToken& sampled,
                             std::vector<TokenEvent>& events) {
  const auto& by_slot = state_.servers[server].by_slot;
  Sequence* sequence = sampled.slot < by_slot.size() ? by_slot[sampled.slot] : nullptr;
  if (sequence == nullptr || sequence->lease.generation != sampled.generation) {
    return;
  }
  if (sequence->phase == Phase::kEnded) {
    ++state_.stats.tokens_dropped;
    return;
  }
  if (sampled.position != sequence->tokens.size()) {
    return;
  }
  TokenEvent& event = events.emplace_back();
  event.request = sequence->id;
  event.token = sampled.token;
  event.num_cached_tokens = sequence->num_cached_tokens;
  if (sampled.token == kNoToken) {
    event.finish = FinishReason::kError;
    event.error = kNoTokenError;
    end(*sequence);
    return;
  }
  sequence->tokens.push_back(sampled.token);
  sequence->committed_kv = sampled.position;
  publish_blocks(*sequence);
  ++state_.stats.tokens_generated;
  event.logprob = sampled.logprob;
  event.top_logprobs = sampled.top_logprobs;
  event.finish = sequence->finish_after(sampled.token);
  if (event.finish != FinishReason::kNone) {
    ++state_.stats.requests_finished;
    end(*sequence);
  }
}

void Committer::end(Sequence& sequence) {
  state_.forget_request(sequence);
  if (sequence.is_running()) {
    state_.withdraw(&sequence, Phase::kEnded);
  } else {
    if (sequence.phase == Phase::kDraining) {
      state_.queue.remove(&sequence);
    }
    sequence.phase = Phase::kEnded;
  }
}

void Committer::publish_blocks(Sequence& sequence) {
  PageLedger& ledger = state_.servers[sequence.lease.server].ledger;
  const std::uint32_t block_size = ledger.cache().block_size();
  while (state_.options.prefix_cache &&
         (sequence.published_blocks + 1) * block_size <= sequence.committed_kv) {
    const std::uint32_t block = sequence.published_blocks++;
    sequence.extend_block_keys(ledger.cache(), (block + 1) * block_size);
    ledger.publish(sequence.block_keys[block], sequence.lease.pages[block]);
  }
}

void Committer::measure(StepInFlight& step, const LaneResult& result) {
  ServerStep& server = step.servers[result.attention_rank];
  state_.attention_cost.observe(server.work[result.lane], result.compute_us);
  server.busy_us += result.compute_us;
  server.wait_us += result.wait_us;
  if (result.lane == 0 && server.overlaps && !result.overlapped) {
    step.did_overlap = false;
  }
  const LaneMask bit = lane_bit(result.lane);
  if (server.pending == bit) {
    StepLoad load;
    for (LaneId b = 0; b < kMaxLanes; ++b) {
      load.busiest_server.rows += server.work[b].rows;
      load.busiest_server.context += server.work[b].context;
      for (const ServerStep& other : step.servers) {
        load.cluster_rows += other.work[b].rows;
      }
    }
    state_.lane_count.on_server_step(load,
                                     static_cast<std::uint32_t>(std::popcount(server.planned)),
                                     server.busy_us, server.wait_us, state_.attention_cost);
  }
  double lane_rows = 0;
  for (ServerRank rank = 0; rank < step.servers.size(); ++rank) {
    if (rank != result.attention_rank && (step.servers[rank].pending & bit) != 0) {
      return;
    }
    lane_rows += step.servers[rank].work[result.lane].rows;
  }
  state_.lane_count.on_lane_committed(lane_rows);
}

}  // namespace fastfd::scheduler
