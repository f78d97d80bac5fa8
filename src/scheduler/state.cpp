#include "scheduler/state.h"

#include <algorithm>
#include <utility>

#include "fastfd/core/check.h"

namespace fastfd::scheduler {
namespace {

/// `auto` begins here: two lanes hide most of what can be hidden, and with one sequence the second
/// stays empty and out of the plans.
constexpr std::uint32_t kFirstAutoLanes = 2;

}  // namespace

ServerState::ServerState(const SchedulerOptions& options)
    : ledger(options.pages_per_server, options.page_size, Scheduler::slots_per_server(options)),
      by_slot(Scheduler::slots_per_server(options)) {}

LaneWork ServerState::expected_work() const {
  LaneWork total;
  for (LaneId b = 0; b < kMaxLanes; ++b) {
    const LaneWork lane = lanes.work(b);
    total.rows += lane.rows;
    total.context += lane.context;
  }
  for (const Sequence* sequence : prefilling) {
    total.rows += 1;
    total.context += sequence->prefill_len;
  }
  return total;
}

State::State(const SchedulerOptions& scheduler_options)
    : options(scheduler_options),
      num_lanes(options.microbatches == 0 ? kFirstAutoLanes : options.microbatches),
      in_flight(options.num_attention_servers),
      lane_count(options.num_layers) {
  servers.reserve(options.num_attention_servers);
  for (ServerRank rank = 0; rank < options.num_attention_servers; ++rank) {
    servers.emplace_back(options);
  }
}

StepLoad State::decode_load() const {
  StepLoad load;
  double busiest_time = -1;
  for (const ServerState& server : servers) {
    LaneWork work;
    for (LaneId b = 0; b < kMaxLanes; ++b) {
      work.rows += server.lanes.work(b).rows;
      work.context += server.lanes.work(b).context;
    }
    load.cluster_rows += work.rows;
    if (work.rows > 0 && (load.min_lane_rows <= 0 || work.rows < load.min_lane_rows)) {
      load.min_lane_rows = work.rows;
    }
    if (attention_cost.predict(work) > busiest_time) {
      busiest_time = attention_cost.predict(work);
      load.busiest_server = work;
    }
  }
  return load;
}

Sequence* State::create(Request request) {
  auto owned = std::make_unique<Sequence>();
  Sequence* sequence = owned.get();
  sequence->id = request.id;
  sequence->priority = request.priority;
  sequence->arrival_order = next_arrival_order++;
  sequence->sampling = std::move(request.sampling);
  sequence->cache_salt = std::move(request.cache_salt);
  sequence->tokens = std::move(request.prompt);
  sequence->prompt_len = static_cast<std::uint32_t>(sequence->tokens.size());
  // max_tokens may be "as much as fits", so the sum must not overflow.
  sequence->limit_len = sequence->prompt_len +
                        std::min(request.max_tokens, options.max_model_len - sequence->prompt_len);
  requests.emplace(sequence->id, sequence);
  sequences.emplace(sequence, std::move(owned));
  return sequence;
}

void State::queue_forks(Sequence& parent) {
  for (Sequence* fork : parent.forks) {
    if (fork->waits_for_parent) {
      fork->waits_for_parent = false;
      --num_waiting_forks;
      queue.push(fork);
    }
  }
}

void State::orphan_forks(Sequence& parent) {
  queue_forks(parent);
  for (Sequence* fork : parent.forks) {
    fork->fork_parent = nullptr;
  }
  parent.forks.clear();
}

void State::leave_parent(Sequence& fork) {
  if (fork.fork_parent != nullptr) {
    std::erase(fork.fork_parent->forks, &fork);
    fork.fork_parent = nullptr;
  }
}

void State::destroy(Sequence* sequence) {
  orphan_forks(*sequence);
  leave_parent(*sequence);
  num_waiting_forks -= sequence->waits_for_parent ? 1 : 0;
  sequences.erase(sequence);
}

void State::retire(Sequence* sequence) {
  servers[sequence->lease.server].retired.push_back(sequence);
  --num_running;
}

void State::withdraw(Sequence* sequence, Phase phase) {
  check(sequence->is_running(), "only running sequences are withdrawn");
  ServerState& server = servers[sequence->lease.server];
  if (sequence->phase == Phase::kDecode) {
    server.lanes.remove(sequence);
    // A decode row is in every step. (Its prefill, if that was the last one, ended in this lane,
    // which commits after the others of the same chunk.)
    sequence->lease.busy_until = {last_step(), lane_bit(sequence->home_lane)};
  } else {
    server.prefilling.erase(
        std::find(server.prefilling.begin(), server.prefilling.end(), sequence));
  }
  sequence->phase = phase;
  retire(sequence);
}

void State::collect(ServerRank rank) {
  ServerState& server = servers[rank];
  std::erase_if(server.retired, [&](Sequence* sequence) {
    Lease& lease = sequence->lease;
    if (!in_flight.has_committed(rank, lease.busy_until)) {
      return false;
    }
    orphan_forks(*sequence);
    server.ledger.return_pages(lease);
    server.by_slot[lease.slot] = nullptr;
    if (sequence->leave_pending) {
      server.slots_behind_leave.push_back(lease.slot);
    } else {
      server.ledger.return_slot(lease.slot);
    }
    if (sequence->phase == Phase::kDraining) {
      sequence->reset_to_queued();
    } else {
      check(sequence->phase == Phase::kEnded, "a lease is returned before its last token came");
      destroy(sequence);
    }
    return true;
  });
}

void State::preempt(Sequence* sequence) {
  const ServerRank server = sequence->lease.server;
  withdraw(sequence, Phase::kDraining);
  sequence->ever_preempted = true;
  ++stats.preemptions;
  queue.push(sequence);
  collect(server);
}

}  // namespace fastfd::scheduler
