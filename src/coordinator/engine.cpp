#include "fastfd/coordinator/engine.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <exception>
#include <iterator>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <unordered_map>
#include <utility>

#include "coordinator/engine_metrics.h"
#include "coordinator/event_queue.h"
#include "coordinator/in_flight.h"
#include "coordinator/membership.h"
#include "coordinator/work_meters.h"

namespace fastfd::coordinator {
namespace {

using control_plane::SessionId;
using Clock = std::chrono::steady_clock;

}  // namespace

/// Scheduler and membership are plain objects under one mutex. The engine's thread holds it while
/// it handles events and while it plans a step, never while tokens go to their sinks; submit()
/// takes it for one insertion, so that it can answer with the scheduler's own verdict.
class Engine::Impl {
 public:
  explicit Impl(EngineOptions options)
      : options_(std::move(options)),
        scheduler_(options_.scheduler),
        membership_({options_.contract, options_.placement_version, options_.heartbeat_timeout,
                     options_.stop_timeout, options_.stall_timeout}),
        meters_(options_.contract.num_attention_servers, options_.contract.num_ffn_servers),
        pages_per_server_(options_.scheduler.pages_per_server),
        thread_([this] { run(); }) {}

  ~Impl() {
    queue_.close();
    thread_.join();
  }

  EventQueue& queue() { return queue_; }

  void drain(std::chrono::milliseconds timeout) {
    {
      const std::lock_guard lock(mutex_);
      const auto deadline = Clock::now() + timeout;
      drain_deadline_ = drain_deadline_ ? std::min(*drain_deadline_, deadline) : deadline;
    }
    queue_.push(event::Wake{});
  }

  bool wait_drained(std::chrono::milliseconds timeout) const {
    std::unique_lock lock(mutex_);
    return drained_changed_.wait_for(lock, timeout, [this] { return drained_; });
  }

  Status submit(Request request, TokenSink* sink) {
    {
      const std::lock_guard lock(mutex_);
      if (drain_deadline_) {
        return {StatusCode::kUnavailable, "the cluster is shutting down"};
      }
      if (membership_.phase() != Membership::Phase::kServing) {
        return {StatusCode::kUnavailable, "the cluster is not ready: " + membership_.detail()};
      }
      const RequestId id = request.id;
      if (auto status = scheduler_.submit(std::move(request)); !status) {
        return status;
      }
      sinks_[id] = sink;
    }
    queue_.push(event::Wake{});
    return Status::ok();
  }

  RequestId next_request_id() { return next_request_id_.fetch_add(1, std::memory_order_relaxed); }

  EngineState state() const {
    const std::lock_guard lock(mutex_);
    return {membership_.phase() == Membership::Phase::kServing && !drain_deadline_,
            drain_deadline_.has_value(), membership_.detail()};
  }

  control_plane::ClusterStatus cluster_status() const {
    const std::lock_guard lock(mutex_);
    return {membership_.epoch(), membership_.phase() == Membership::Phase::kServing,
            drain_deadline_.has_value(), membership_.detail(), membership_.statuses()};
  }

  std::vector<EngineMetric> metrics() const {
    const std::lock_guard lock(mutex_);
    std::vector<std::pair<Role, std::uint32_t>> joined{{Role::kAttention, 0}, {Role::kFfn, 0}};
    for (const auto& member : membership_.statuses()) {
      joined[member.role == Role::kFfn ? 1 : 0].second += member.state == "missing" ? 0 : 1;
    }
    return make_metrics(
        {scheduler_.stats(), meters_, membership_.epoch(),
         membership_.phase() == Membership::Phase::kServing, late_reports_, std::move(joined)},
        Clock::now());
  }

  Result<SessionId> registered(const control_plane::Registration& registration,
                               std::shared_ptr<control_plane::MemberLink> link) {
    if (auto reason = control_plane::why_refused(options_.contract, registration);
        !reason.empty()) {
      return Status(StatusCode::kInvalidArgument, std::move(reason));
    }
    {
      const std::lock_guard lock(mutex_);
      if (drain_deadline_) {
        return Status(StatusCode::kUnavailable, "the cluster is shutting down");
      }
    }
    const SessionId session = next_session_.fetch_add(1, std::memory_order_relaxed);
    queue_.push(event::Registered{session, registration, std::move(link)});
    return session;
  }

 private:
  void run() {
    std::vector<Event> events;
    std::optional<SteadyTime> deadline;
    while (queue_.take_all(deadline, &events)) {
      std::vector<TokenEvent> tokens;
      std::vector<Membership::Fence> fences;
      {
        const std::lock_guard lock(mutex_);
        now_ = Clock::now();
        membership_.notice_own_pause(now_);
        for (auto& event : events) {
          std::visit([&](auto& value) { handle(value, &tokens); }, event);
        }
        membership_.check_deadlines(now_);
        learn_pages();
        follow_epoch(&tokens);
        fences = membership_.take_fences();
      }
      for (const auto& fence : fences) {
        if (options_.fence) {
          options_.fence(fence.role, fence.rank, fence.pid, fence.process_key);
        }
      }
      publish();  // before emitting: servers without a plan stand still, a token can wait 100 us
      emit(std::move(tokens));
      deadline = finish_round();
    }
  }

  // ---- events; mutex_ is held ----

  void handle(event::Wake& /*event*/, std::vector<TokenEvent>* /*tokens*/) {}

  void handle(event::Abort& event, std::vector<TokenEvent>* /*tokens*/) {
    scheduler_.abort(event.id);
    sinks_.erase(event.id);
  }

  void handle(event::Registered& event, std::vector<TokenEvent>* /*tokens*/) {
    const auto& server = event.registration;
    if (finds_pages() && server.role == Role::kAttention && server.num_pages < pages_per_server_) {
      // Judged here and not on arrival: what was on its way when the pages became known counts,
      // too.
      const auto reason = fmt::format(
          "KV pages: the server has room for {}, but the cluster has been using {} of each "
          "attention server; end what else runs on its GPU, or restart the coordinator",
          server.num_pages, pages_per_server_);
      spdlog::warn("refused {}: {}", control_plane::member_name(server.role, server.rank), reason);
      event.link->refuse(reason);
      return;
    }
    membership_.registered(event.session, std::move(event.registration), std::move(event.link),
                           now_);
  }

  void handle(event::Ready& event, std::vector<TokenEvent>* /*tokens*/) {
    membership_.ready(event.session, event.epoch, now_);
  }

  void handle(event::StopAcked& event, std::vector<TokenEvent>* /*tokens*/) {
    membership_.stop_acked(event.session, event.next_epoch, now_);
  }

  void handle(event::Reported& event, std::vector<TokenEvent>* tokens) {
    const auto member = membership_.identify(event.session);
    const auto& result = event.result;
    if (!member || *member != std::pair(Role::kAttention, result.attention_rank) ||
        membership_.phase() != Membership::Phase::kServing || result.epoch != membership_.epoch()) {
      ++late_reports_;
      return;
    }
    in_flight_.reported(result);
    meters_.add(result, now_);
    std::vector<TokenEvent> committed;
    try {
      committed = scheduler_.commit(result);
    } catch (const std::exception& error) {
      // What a server says must not bring the coordinator down; a new epoch starts with new books.
      membership_.failed(event.session, std::string("its results make no sense: ") + error.what(),
                         now_);
      return;
    }
    membership_.committed();
    tokens->insert(tokens->end(), std::make_move_iterator(committed.begin()),
                   std::make_move_iterator(committed.end()));
  }

  void handle(event::Heartbeat& event, std::vector<TokenEvent>* /*tokens*/) {
    membership_.heartbeat(event.session, event.heartbeat, in_flight_, now_);
  }

  void handle(event::Load& event, std::vector<TokenEvent>* /*tokens*/) {
    const auto member = membership_.identify(event.session);
    if (!member || *member != std::pair(Role::kFfn, event.load.ffn_rank)) {
      ++late_reports_;
      return;
    }
    meters_.add(event.load, now_);
    scheduler_.observe(event.load);
  }

  void handle(event::Failed& event, std::vector<TokenEvent>* /*tokens*/) {
    membership_.failed(event.session, event.message, now_);
  }

  void handle(event::Lost& event, std::vector<TokenEvent>* /*tokens*/) {
    membership_.lost(event.session, event.reason, now_);
  }

  bool finds_pages() const { return options_.scheduler.pages_per_server == 0; }

  /// Once the cluster serves for the first time, and so before anything was submitted, the books
  /// are made anew for the pages that every attention server has.
  void learn_pages() {
    if (pages_per_server_ != 0 || membership_.phase() != Membership::Phase::kServing) {
      return;
    }
    pages_per_server_ = membership_.fewest_pages();
    auto options = options_.scheduler;
    options.pages_per_server = pages_per_server_;
    scheduler_ = scheduler::Scheduler(options);
    spdlog::info("using {} KV pages of {} tokens on each attention server", pages_per_server_,
                 options.page_size);
  }

  /// Ends what ran under an epoch that is over.
  void follow_epoch(std::vector<TokenEvent>* tokens) {
    if (scheduler_.epoch() == membership_.epoch()) {
      return;
    }
    in_flight_.clear();
    auto ended = scheduler_.begin_epoch(membership_.epoch(), membership_.end_reason());
    tokens->insert(tokens->end(), std::make_move_iterator(ended.begin()),
                   std::make_move_iterator(ended.end()));
  }

  // ---- after the events; mutex_ is not held ----

  /// One call a sink with everything this round brought it.
  void emit(std::vector<TokenEvent> tokens) {
    if (tokens.empty()) {
      return;
    }
    std::vector<std::pair<TokenSink*, std::vector<TokenEvent>>> batches;
    {
      const std::lock_guard lock(mutex_);
      for (auto& token : tokens) {
        const auto found = sinks_.find(token.request);
        if (found == sinks_.end()) {
          continue;
        }
        TokenSink* sink = found->second;
        if (token.finish != FinishReason::kNone) {
          sinks_.erase(found);
        }
        auto batch = std::find_if(batches.begin(), batches.end(),
                                  [sink](const auto& entry) { return entry.first == sink; });
        if (batch == batches.end()) {
          batch = batches.insert(batches.end(), {sink, {}});
        }
        batch->second.push_back(std::move(token));
      }
    }
    for (auto& [sink, batch] : batches) {
      sink->on_events(std::move(batch));
    }
  }

  /// The mutex is released between steps, so that a submission waits for one plan at most.
  void publish() {
    for (;;) {
      const std::lock_guard lock(mutex_);
      if (membership_.phase() != Membership::Phase::kServing) {
        return;
      }
      auto plan = scheduler_.plan();
      if (!plan) {
        return;
      }
      in_flight_.published(*plan, now_);
      // FFN servers first: they begin nothing before the dispatches come, but then at once.
      membership_.send_ffn_plan(plan->ffn);
      for (auto& [rank, attention_plan] : plan->attention) {
        membership_.link(Role::kAttention, rank)->plan(std::move(attention_plan));
      }
    }
  }

  /// Completes a drain that has run out of work or time; returns when to wake up next.
  std::optional<SteadyTime> finish_round() {
    std::vector<TokenEvent> aborted;
    std::optional<SteadyTime> deadline;
    bool completes_drain = false;
    {
      const std::lock_guard lock(mutex_);
      deadline = membership_.next_deadline();
      if (drain_deadline_ && !drained_) {
        if (scheduler_.idle() || Clock::now() >= *drain_deadline_) {
          completes_drain = true;
          aborted = abort_all();
          membership_.shut_down();
        } else {
          deadline = deadline ? std::min(*deadline, *drain_deadline_) : *drain_deadline_;
        }
      }
    }
    emit(std::move(aborted));
    if (completes_drain) {
      const std::lock_guard lock(mutex_);
      drained_ = true;
      drained_changed_.notify_all();
    }
    return deadline;
  }

  std::vector<TokenEvent> abort_all() {
    std::vector<TokenEvent> events;
    for (const auto& [id, sink] : sinks_) {
      scheduler_.abort(id);
      TokenEvent& event = events.emplace_back();
      event.request = id;
      event.finish = FinishReason::kError;
      event.error = "the cluster is shutting down";
    }
    return events;
  }

  const EngineOptions options_;
  EventQueue queue_;
  std::atomic<RequestId> next_request_id_{1};
  std::atomic<SessionId> next_session_{1};

  mutable std::mutex mutex_;
  scheduler::Scheduler scheduler_;
  Membership membership_;
  InFlight in_flight_;
  WorkMeters meters_;
  std::uint32_t pages_per_server_;  // 0: not known yet
  std::unordered_map<RequestId, TokenSink*> sinks_;
  std::uint64_t late_reports_ = 0;
  std::optional<SteadyTime> drain_deadline_;
  bool drained_ = false;
  mutable std::condition_variable drained_changed_;
  SteadyTime now_{};  // of the round; the engine's thread only

  std::thread thread_;  // last: it uses all of the above
};

Engine::Engine(EngineOptions options) : impl_(std::make_unique<Impl>(std::move(options))) {}
Engine::~Engine() = default;

void Engine::drain(std::chrono::milliseconds timeout) { impl_->drain(timeout); }
bool Engine::wait_drained(std::chrono::milliseconds timeout) const {
  return impl_->wait_drained(timeout);
}

Status Engine::submit(Request request, TokenSink* sink) {
  return impl_->submit(std::move(request), sink);
}
void Engine::abort(RequestId id) { impl_->queue().push(event::Abort{id}); }
RequestId Engine::next_request_id() { return impl_->next_request_id(); }
EngineState Engine::state() const { return impl_->state(); }
std::vector<EngineMetric> Engine::metrics() const { return impl_->metrics(); }

Result<SessionId> Engine::member_registered(const control_plane::Registration& registration,
                                            std::shared_ptr<control_plane::MemberLink> link) {
  return impl_->registered(registration, std::move(link));
}
void Engine::member_ready(SessionId session, Epoch epoch) {
  impl_->queue().push(event::Ready{session, epoch});
}
void Engine::stop_acked(SessionId session, Epoch next_epoch) {
  impl_->queue().push(event::StopAcked{session, next_epoch});
}
void Engine::lane_result(SessionId session, LaneResult result) {
  impl_->queue().push(event::Reported{session, std::move(result)});
}
void Engine::heartbeat(SessionId session, const control_plane::Heartbeat& heartbeat) {
  impl_->queue().push(event::Heartbeat{session, heartbeat});
}
void Engine::ffn_load(SessionId session, const FfnLoad& load) {
  impl_->queue().push(event::Load{session, load});
}
void Engine::member_failed(SessionId session, const std::string& message) {
  impl_->queue().push(event::Failed{session, message});
}
void Engine::member_lost(SessionId session, const std::string& reason) {
  impl_->queue().push(event::Lost{session, reason});
}
control_plane::ClusterStatus Engine::cluster_status() const { return impl_->cluster_status(); }

}  // namespace fastfd::coordinator
