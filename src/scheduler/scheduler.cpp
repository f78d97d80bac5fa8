#include "fastfd/scheduler/scheduler.h"

#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>

#include "scheduler/committer.h"
#include "scheduler/planner.h"
#include "scheduler/state.h"

namespace fastfd::scheduler {
namespace {

void require(bool condition, const char* what) {
  if (!condition) {
    throw std::invalid_argument(std::string("scheduler options: ") + what);
  }
}

SchedulerOptions validated(SchedulerOptions options) {
  require(options.num_attention_servers >= 1 && options.num_attention_servers <= kMaxServers,
          "num_attention_servers must be 1 to 64");
  require(options.page_size >= 1, "page_size must be at least 1");
  require(options.max_sequences >= 1, "max_sequences must be at least 1");
  require(options.max_batched_tokens >= 1, "max_batched_tokens must be at least 1");
  require(options.prefill_chunk >= 1, "prefill_chunk must be at least 1");
  require(options.max_model_len >= 2, "max_model_len must be at least 2");
  require(options.max_queued_requests >= 1, "max_queued_requests must be at least 1");
  require(options.plan_ahead >= 1 && options.plan_ahead <= 3, "plan_ahead must be 1 to 3");
  require(options.microbatches <= kMaxLanes, "microbatches must be 0 (auto) or 1 to 4");
  options.prefix_cache = options.prefix_cache && !options.recurrent_state;
  return options;
}

Status invalid(std::string message) { return {StatusCode::kInvalidArgument, std::move(message)}; }

}  // namespace

class Scheduler::Impl {
 public:
  explicit Impl(const SchedulerOptions& options)
      : state(validated(options)), planner(state), committer(state) {}

  Status refuse(const Request& request) const;
  Sequence* find_parent(const Request& request) const;
  std::vector<TokenEvent> begin_epoch(Epoch epoch, const std::string& reason);

  State state;
  Planner planner;
  Committer committer;
};

/// What is wrong with a request that could never run, or ok.
Status Scheduler::Impl::refuse(const Request& request) const {
  const SchedulerOptions& options = state.options;
  if (request.prompt.empty()) {
    return invalid("the prompt has no tokens; send at least one");
  }
  if (request.max_tokens == 0) {
    return invalid("max_tokens is 0; ask for at least one token");
  }
  if (std::any_of(request.prompt.begin(), request.prompt.end(),
                  [](TokenId token) { return token < 0; })) {
    return invalid("the prompt holds a negative token id");
  }
  if (state.requests.contains(request.id)) {
    return invalid("request id " + std::to_string(request.id) + " is in use");
  }
  const std::uint64_t prompt_len = request.prompt.size();
  if (prompt_len >= options.max_model_len) {
    return invalid("the prompt has " + std::to_string(prompt_len) +
                   " tokens, which leaves no room for output in a context of " +
                   std::to_string(options.max_model_len) + "; shorten the prompt");
  }
  const std::uint64_t total =
      std::min<std::uint64_t>(prompt_len + request.max_tokens, options.max_model_len);
  // The last token is sampled but never fed, so it needs no place in the cache.
  const std::uint64_t num_pages = (total - 1 + options.page_size - 1) / options.page_size;
  if (num_pages > options.pages_per_server) {
    return invalid(std::to_string(prompt_len) + " prompt tokens and up to " +
                   std::to_string(total - prompt_len) + " output tokens need " +
                   std::to_string(num_pages) + " KV pages of " + std::to_string(options.page_size) +
                   " tokens, but an attention server has only " +
                   std::to_string(options.pages_per_server) + " (" +
                   std::to_string(std::uint64_t{options.pages_per_server} * options.page_size) +
                   " tokens); shorten the prompt or lower max_tokens");
  }
  return Status::ok();
}

/// Of whom the request is another choice that can share the prompt's pages, or nullptr.
Sequence* Scheduler::Impl::find_parent(const Request& request) const {
  if (state.options.recurrent_state) {
    return nullptr;
  }
  const auto at = state.requests.find(request.fork_of);
  if (at == state.requests.end()) {
    return nullptr;
  }
  Sequence* parent = at->second;
  const bool same_prompt =
      parent->prompt_len == request.prompt.size() && parent->cache_salt == request.cache_salt &&
      std::equal(request.prompt.begin(), request.prompt.end(), parent->tokens.begin());
  return same_prompt ? parent : nullptr;
}

/// Whoever had a lease fails. To recover them instead, treat them like the preempted ones below:
/// reset_to_queued() and queue.push(); their next prompt is what they had and what they emitted.
std::vector<TokenEvent> Scheduler::Impl::begin_epoch(Epoch epoch, const std::string& reason) {
  std::vector<Sequence*> leased;
  for (const auto& [sequence, owned] : state.sequences) {
    if (sequence->phase != Phase::kQueued) {
      leased.push_back(owned.get());
    }
  }
  std::sort(leased.begin(), leased.end(), [](const Sequence* a, const Sequence* b) {
    return a->arrival_order < b->arrival_order;
  });
  std::vector<TokenEvent> events;
  for (Sequence* sequence : leased) {
    state.orphan_forks(*sequence);
    if (sequence->phase == Phase::kDraining) {
      sequence->reset_to_queued();
      continue;
    }
    if (sequence->phase != Phase::kEnded) {
      TokenEvent& event = events.emplace_back();
      event.request = sequence->id;
      event.finish = FinishReason::kError;
      event.error = reason;
      event.num_cached_tokens = sequence->num_cached_tokens;
      state.forget_request(*sequence);
    }
    state.destroy(sequence);
  }
  for (ServerState& server : state.servers) {
    server.ledger.reset();
    server.lanes.reset();
    server.prefilling.clear();
    server.retired.clear();
    server.slots_behind_leave.clear();
    std::fill(server.by_slot.begin(), server.by_slot.end(), nullptr);
  }
  state.in_flight.clear();
  committer.clear();
  state.lane_count.forget_counters();
  state.num_running = 0;
  state.epoch = epoch;
  return events;
}

Scheduler::Scheduler(const SchedulerOptions& options) : impl_(std::make_unique<Impl>(options)) {}
Scheduler::~Scheduler() = default;
Scheduler::Scheduler(Scheduler&&) noexcept = default;
Scheduler& Scheduler::operator=(Scheduler&&) noexcept = default;

Status Scheduler::submit(Request request) {
  State& state = impl_->state;
  if (Status status = impl_->refuse(request); !status) {
    return status;
  }
  const std::uint32_t num_queued = state.queue.num_new() + state.num_waiting_forks;
  if (num_queued >= state.options.max_queued_requests) {
    return {StatusCode::kResourceExhausted,
            std::to_string(num_queued) + " requests are queued already; retry later"};
  }
  Sequence* parent = impl_->find_parent(request);
  Sequence* sequence = state.create(std::move(request));
  if (parent != nullptr) {
    sequence->fork_parent = parent;
    parent->forks.push_back(sequence);
    sequence->waits_for_parent = !parent->has_committed_prompt();
  }
  if (sequence->waits_for_parent) {
    ++state.num_waiting_forks;
  } else {
    state.queue.push(sequence);
  }
  return Status::ok();
}

void Scheduler::abort(RequestId id) {
  State& state = impl_->state;
  const auto at = state.requests.find(id);
  if (at == state.requests.end()) {
    return;
  }
  Sequence* sequence = at->second;
  state.requests.erase(at);
  switch (sequence->phase) {
    case Phase::kQueued:
      state.queue.remove(sequence);
      state.destroy(sequence);
      break;
    case Phase::kPrefill:
    case Phase::kDecode: {
      const ServerRank server = sequence->lease.server;
      state.withdraw(sequence, Phase::kEnded);
      state.collect(server);
      break;
    }
    case Phase::kDraining:
      state.queue.remove(sequence);
      sequence->phase = Phase::kEnded;
      break;
    case Phase::kFinishing:
    case Phase::kEnded:
      sequence->phase = Phase::kEnded;
      break;
  }
}

std::optional<StepPlan> Scheduler::plan() { return impl_->planner.plan(); }

std::vector<TokenEvent> Scheduler::commit(const LaneResult& result) {
  return impl_->committer.commit(result);
}

void Scheduler::observe(const FfnLoad& load) { impl_->state.lane_count.observe(load); }

std::vector<TokenEvent> Scheduler::begin_epoch(Epoch epoch, const std::string& reason) {
  return impl_->begin_epoch(epoch, reason);
}

Epoch Scheduler::epoch() const { return impl_->state.epoch; }

bool Scheduler::idle() const {
  return impl_->state.requests.empty() && impl_->state.in_flight.empty();
}

bool Scheduler::has_request(RequestId id) const { return impl_->state.requests.contains(id); }

SchedulerStats Scheduler::stats() const {
  const State& state = impl_->state;
  SchedulerStats stats = state.stats;
  stats.queued = state.queue.size() + state.num_waiting_forks;
  stats.running = state.num_running;
  stats.num_lanes = state.num_lanes;
  const LayerTimes times =
      state.lane_count.predict(state.num_lanes, state.decode_load(), state.attention_cost);
  stats.predicted_layer_us = times.layer_us;
  stats.attention_layer_us = times.attention_us;
  stats.ffn_layer_us = times.ffn_us;
  stats.transfer_us = times.transfer_us;
  for (const ServerState& server : state.servers) {
    stats.free_pages.push_back(server.ledger.num_free());
    stats.cached_pages.push_back(server.ledger.num_cached_idle());
    stats.free_slots.push_back(server.ledger.num_free_slots() +
                               static_cast<std::uint32_t>(server.slots_behind_leave.size()));
  }
  return stats;
}

std::uint32_t Scheduler::slots_per_server(const SchedulerOptions& options) {
  return 2 * options.max_sequences;
}

}  // namespace fastfd::scheduler
