#include "scheduler/sequence.h"

namespace fastfd::scheduler {

void Sequence::extend_block_keys(const PrefixCache& cache, std::uint32_t num_tokens) {
  const std::uint32_t block_size = cache.block_size();
  while ((block_keys.size() + 1) * block_size <= num_tokens) {
    const BlockKey parent = block_keys.empty() ? cache.root_key(cache_salt) : block_keys.back();
    block_keys.push_back(cache.child_key(
        parent, std::span(tokens).subspan(block_keys.size() * block_size, block_size)));
  }
}

FinishReason Sequence::finish_after(TokenId token) const {
  // The sampler bans stop ids below min_tokens; a server that samples one regardless (all others
  // banned by logit_bias, say) must not end the sequence early.
  const bool may_stop = !sampling.ignore_eos && num_generated() > sampling.min_tokens;
  if (may_stop && std::find(sampling.stop_token_ids.begin(), sampling.stop_token_ids.end(),
                            token) != sampling.stop_token_ids.end()) {
    return FinishReason::kStop;
  }
  return tokens.size() >= limit_len ? FinishReason::kLength : FinishReason::kNone;
}

void Sequence::reset_to_queued() {
  phase = Phase::kQueued;
  leave_pending = false;
  needs_open = false;
  lease = {};
  page_capacity = 0;
  planned_len = 0;
  prefill_len = 0;
  planned_kv = 0;
  committed_kv = 0;
  published_blocks = 0;
}

}  // namespace fastfd::scheduler
