// How a plan reaches the GPU: page tables, slots that begin, pages that are copied.
#include <fmt/format.h>

#include <algorithm>

#include "attention_server/gpu_runner.h"
#include "fastfd/core/check.h"

namespace fastfd::attention_server {

using device::copy_async;
namespace cuda = kernels::cuda;

Status GpuRunner::set_counts(GpuLane& lane, SlotId id, const Slot& slot) {
  const std::uint32_t entry = num_histories_ % kNumHistories;
  if (num_histories_++ >= kNumHistories) {
    if (auto status = history_done_[entry].synchronize(); !status) {
      return status;
    }
  }
  auto* history = reinterpret_cast<cuda::TokenHistory*>(histories_.data() + entry * history_bytes_);
  *history = {.counts_row = static_cast<std::int32_t>(id)};
  auto* const tokens = reinterpret_cast<TokenId*>(history + 1);
  auto* next = tokens;
  for (const auto& [token, count] : slot.counts) {
    if (count == 0) {  // one that was generated counts as seen anyway
      *next++ = token;
    }
  }
  history->num_prompt_tokens = static_cast<std::uint32_t>(next - tokens);
  for (const auto& [token, count] : slot.counts) {
    next = std::fill_n(next, count, token);
  }
  const auto num_tokens = static_cast<std::uint32_t>(next - tokens);
  history->num_output_tokens = num_tokens - history->num_prompt_tokens;
  auto* on_device = histories_on_device_.data() + entry * history_bytes_;
  auto status = copy_async(on_device, history, sizeof(*history) + num_tokens * sizeof(TokenId),
                           lane.stream());
  if (status) {
    const auto* copied = reinterpret_cast<const cuda::TokenHistory*>(on_device);
    status = cuda::launch_set_token_counts({.num_histories = 1,
                                            .vocab_size = spec_.vocab_size,
                                            .histories = copied,
                                            .tokens = reinterpret_cast<const TokenId*>(copied + 1),
                                            .token_counts = token_counts_.as<std::uint32_t>()},
                                           lane.stream());
  }
  return status ? history_done_[entry].record(lane.stream()) : status;
}

Status GpuRunner::open_slot(GpuLane& lane, SlotId id, const Slot& slot, GpuSlotState& state) {
  const SamplingParams& params = slot.sampling;
  if (params.logit_bias.size() > kMaxLogitBiases || params.stop_token_ids.size() > kMaxStopTokens) {
    return {StatusCode::kInternal,
            fmt::format("slot {} has {} logit biases and {} stop tokens; a server takes {} and {}",
                        id, params.logit_bias.size(), params.stop_token_ids.size(), kMaxLogitBiases,
                        kMaxStopTokens)};
  }
  state.sampling = cuda::slot_sampling(params);
  state.sampling.counts_row = params.has_penalties() ? static_cast<std::int32_t>(id) : -1;
  state.sampling.first_bias = id * kMaxLogitBiases;
  state.sampling.first_stop_token = id * kMaxStopTokens;
  for (std::size_t i = 0; i < params.logit_bias.size(); ++i) {
    state.logit_biases[i] = {params.logit_bias[i].first, params.logit_bias[i].second};
  }
  std::copy(params.stop_token_ids.begin(), params.stop_token_ids.end(), state.stop_tokens);
  auto status = copy_async(slot_sampling_.as<cuda::SlotSampling>() + id, &state.sampling,
                           sizeof(state.sampling), lane.stream());
  if (status && state.sampling.num_biases > 0) {
    status = copy_async(logit_biases_.as<cuda::LogitBias>() + state.sampling.first_bias,
                        state.logit_biases, state.sampling.num_biases * sizeof(cuda::LogitBias),
                        lane.stream());
  }
  if (status && state.sampling.num_stop_tokens > 0) {
    status =
        copy_async(stop_tokens_.as<TokenId>() + state.sampling.first_stop_token, state.stop_tokens,
                   state.sampling.num_stop_tokens * sizeof(TokenId), lane.stream());
  }
  return status && params.has_penalties() ? set_counts(lane, id, slot) : status;
}

Status GpuRunner::apply_plan(GpuLane& lane, const LaneBatch& batch,
                             const SequenceTable& sequences) {
  GpuLaneStaging& staging = lane.staging();
  Status status;
  // Entries of one slot follow each other: one copy a run.
  const auto& updates = batch.page_updates;
  check(updates.size() <= std::size_t{options_.num_slots} * pages_per_slot_,
        "more page-table entries than there are");
  for (std::size_t first = 0; status && first < updates.size();) {
    std::size_t last = first;
    for (; last < updates.size() && updates[last].slot == updates[first].slot &&
           updates[last].index == updates[first].index + (last - first);
         ++last) {
      staging.pages[last] = updates[last].page;
    }
    PageId* to = page_tables_.as<PageId>() + std::size_t{updates[first].slot} * pages_per_slot_ +
                 updates[first].index;
    status = copy_async(to, staging.pages + first, (last - first) * sizeof(PageId), lane.stream());
    first = last;
  }
  for (std::size_t i = 0; status && i < batch.opened.size(); ++i) {
    const SlotId id = batch.opened[i];
    status = open_slot(lane, id, sequences.slot(id), staging.opened[i]);
  }
  for (std::size_t i = 0; status && i < batch.copies.size(); ++i) {
    status = full_attention_->copy_page(lane.stream(), batch.copies[i]);
    if (status) {
      status = latent_attention_->copy_page(lane.stream(), batch.copies[i]);
    }
  }
  return status;
}

}  // namespace fastfd::attention_server
