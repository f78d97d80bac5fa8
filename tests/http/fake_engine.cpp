#include "http/fake_engine.h"

#include <algorithm>

#include "http/fake_text.h"

namespace fastfd::gateway {
namespace {

constexpr std::chrono::seconds kPatience{20};

}  // namespace

FakeEngine::FakeEngine() : thread_([this] { run(); }) { set_reply("Hello, world!"); }

FakeEngine::~FakeEngine() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

Status FakeEngine::submit(Request request, TokenSink* sink) {
  {
    const std::lock_guard lock(mutex_);
    if (!state_.ready) {
      return {StatusCode::kUnavailable, state_.detail};
    }
    if (running_.size() >= max_requests_) {
      return {StatusCode::kResourceExhausted, "the queue is full"};
    }
    Running running{request, sink, reply_(request)};
    running_.emplace(request.id, std::move(running));
    submitted_.push_back(std::move(request));
  }
  changed_.notify_all();
  return Status::ok();
}

void FakeEngine::abort(RequestId id) {
  {
    const std::lock_guard lock(mutex_);
    num_aborted_ += running_.erase(id);
  }
  changed_.notify_all();
}

RequestId FakeEngine::next_request_id() {
  const std::lock_guard lock(mutex_);
  return next_id_++;
}

EngineState FakeEngine::state() const {
  const std::lock_guard lock(mutex_);
  return state_;
}

std::vector<EngineMetric> FakeEngine::metrics() const {
  const std::lock_guard lock(mutex_);
  EngineMetric running;
  running.name = "fastfd_running_requests";
  running.help = "Requests that generate";
  running.labels = {{"server", "0"}};
  running.value = static_cast<double>(running_.size());
  return {running};
}

void FakeEngine::set_reply(Reply reply) {
  const std::lock_guard lock(mutex_);
  reply_ = std::move(reply);
}

void FakeEngine::set_reply(const std::string& text) {
  set_reply([text](const Request&) { return text; });
}

void FakeEngine::set_step_delay(std::chrono::microseconds delay) {
  const std::lock_guard lock(mutex_);
  step_delay_ = delay;
}

void FakeEngine::set_state(EngineState state) {
  const std::lock_guard lock(mutex_);
  state_ = std::move(state);
}

void FakeEngine::set_max_requests(std::size_t max_requests) {
  const std::lock_guard lock(mutex_);
  max_requests_ = max_requests;
}

void FakeEngine::pause() {
  const std::lock_guard lock(mutex_);
  paused_ = true;
}

void FakeEngine::resume() {
  {
    const std::lock_guard lock(mutex_);
    paused_ = false;
  }
  changed_.notify_all();
}

void FakeEngine::step() {
  {
    const std::lock_guard lock(mutex_);
    ++single_steps_;
  }
  changed_.notify_all();
}

void FakeEngine::fail_after(std::uint32_t num_tokens) {
  const std::lock_guard lock(mutex_);
  fail_after_ = num_tokens;
}

std::vector<Request> FakeEngine::submitted() const {
  const std::lock_guard lock(mutex_);
  return submitted_;
}

std::size_t FakeEngine::num_running() const {
  const std::lock_guard lock(mutex_);
  return running_.size();
}

std::size_t FakeEngine::num_aborted() const {
  const std::lock_guard lock(mutex_);
  return num_aborted_;
}

bool FakeEngine::wait_running(std::size_t count) const {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, kPatience, [&] { return running_.size() == count; });
}

bool FakeEngine::wait_aborted(std::size_t count) const {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, kPatience, [&] { return num_aborted_ >= count; });
}

void FakeEngine::run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(
        lock, [this] { return stop_ || (!running_.empty() && (!paused_ || single_steps_ > 0)); });
    if (stop_) {
      return;
    }
    single_steps_ -= paused_ ? 1 : 0;
    auto batches = make_step();
    const auto delay = step_delay_;
    lock.unlock();
    changed_.notify_all();
    for (auto& [sink, events] : batches) {
      sink->on_events(std::move(events));
    }
    if (delay.count() > 0) {
      std::this_thread::sleep_for(delay);
    }
    lock.lock();
  }
}

std::map<TokenSink*, std::vector<TokenEvent>> FakeEngine::make_step() {
  std::map<TokenSink*, std::vector<TokenEvent>> batches;
  for (auto it = running_.begin(); it != running_.end();) {
    TokenEvent event = next_event(it->second);
    const bool finished = event.finish != FinishReason::kNone;
    batches[it->second.sink].push_back(std::move(event));
    it = finished ? running_.erase(it) : std::next(it);
  }
  return batches;
}

TokenEvent FakeEngine::next_event(Running& running) const {
  const Request& request = running.request;
  const SamplingParams& sampling = request.sampling;
  TokenEvent event;
  event.request = request.id;
  if (fail_after_ > 0 && running.num_tokens >= fail_after_) {
    event.finish = FinishReason::kError;
    event.error = "attention server 1 was lost";
    return event;
  }
  const bool may_end = !sampling.ignore_eos && running.num_tokens >= sampling.min_tokens;
  if (running.at == running.reply.size()) {
    running.at = 0;
    event.token = may_end ? kFakeEos : kNoToken;
  }
  if (event.token == kNoToken) {
    event.token = static_cast<unsigned char>(running.reply[running.at++]);
  }
  ++running.num_tokens;
  event.num_cached_tokens = static_cast<std::uint32_t>(request.prompt.size() / 2);
  if (sampling.num_logprobs >= 0) {
    event.logprob = -0.5F;
    for (std::int32_t i = 0; i < sampling.num_logprobs; ++i) {
      event.top_logprobs.push_back({(event.token + i) % 256, -0.5F - static_cast<float>(i)});
    }
  }
  const auto& stops = sampling.stop_token_ids;
  if (may_end && std::find(stops.begin(), stops.end(), event.token) != stops.end()) {
    event.finish = FinishReason::kStop;
  } else if (running.num_tokens == request.max_tokens) {
    event.finish = FinishReason::kLength;
  }
  return event;
}

}  // namespace fastfd::gateway
