#include "gateway/generation.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <utility>

namespace fastfd::gateway {
namespace {

/// SplitMix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators, 2014).
std::uint64_t mix(std::uint64_t value) {
  value += 0x9E3779B97F4A7C15U;
  value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9U;
  value = (value ^ (value >> 27)) * 0x94D049BB133111EBU;
  return value ^ (value >> 31);
}

std::string response_id(bool chat, std::uint64_t random) {
  return fmt::format("{}-{:016x}{:08x}", chat ? "chatcmpl" : "cmpl", mix(random),
                     static_cast<std::uint32_t>(mix(random + 1)));
}

std::int64_t unix_time() {
  return std::chrono::duration_cast<std::chrono::seconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

double seconds(SteadyTime::duration duration) {
  return std::chrono::duration<double>(duration).count();
}

}  // namespace

std::uint64_t choice_seed(std::uint64_t seed, std::uint32_t index) {
  return index == 0 ? seed : mix(seed ^ mix(index));
}

Generation::Generation(GenerationRequest request, GenerationContext context,
                       std::function<void()> on_progress)
    : context_(std::move(context)),
      on_progress_(std::move(on_progress)),
      stream_(request.stream),
      include_usage_(request.include_usage),
      choices_per_prompt_(request.num_choices),
      min_tokens_(request.sampling.min_tokens),
      ignore_eos_(request.sampling.ignore_eos),
      shows_reasoning_(request.chat && request.include_reasoning &&
                       context_.model->reasoning != Reasoning::kNone),
      formatter_(request.chat, request.stream, request.include_usage,
                 response_id(request.chat, context_.random_seed), unix_time(),
                 context_.model->name),
      choices_(request.prompts.size() * request.num_choices),
      request_(std::move(request)) {
  for (std::size_t i = 0; i < choices_.size(); ++i) {
    const TokenizedPrompt& prompt = request_->prompts[i / choices_per_prompt_];
    choices_[i].reader = make_answer_reader(
        *context_.model->text, {request_->stop_strings, prompt.tokens, false}, answer_form());
    choices_[i].text = prompt.echo_text;
    if (request_->sampling.num_logprobs >= 0) {
      choices_[i].logprobs = std::make_unique<LogprobsJson>(request_->chat);
    }
  }
  for (const TokenizedPrompt& prompt : request_->prompts) {
    usage_.prompt_tokens += prompt.tokens.size();
  }
}

Generation::~Generation() { cancel(); }

AnswerForm Generation::answer_form() const {
  const bool has_channels = request_->chat && context_.model->reasoning == Reasoning::kChannels;
  return {.start = request_->answer_start,
          .channels = has_channels ? context_.model->text->channel_tokens() : std::nullopt};
}

Request Generation::make_request(std::uint32_t choice) {
  const std::uint32_t prompt_index = choice / choices_per_prompt_;
  const std::uint32_t index = choice % choices_per_prompt_;
  TokenizedPrompt& prompt = request_->prompts[prompt_index];
  Request request;
  request.id = choices_[choice].id;
  const bool last_use = index + 1 == choices_per_prompt_;
  request.prompt = last_use ? std::move(prompt.tokens) : prompt.tokens;
  request.sampling = request_->sampling;
  request.sampling.seed = choice_seed(request_->seed.value_or(context_.random_seed), index);
  request.max_tokens = prompt.max_tokens;
  request.priority = request_->priority;
  request.cache_salt = request_->cache_salt;
  request.arrival = context_.arrival;
  request.fork_of = index > 0 ? choices_[choice - index].id : 0;
  return request;
}

std::optional<ApiError> Generation::start() {
  for (std::uint32_t i = 0; i < choices_.size(); ++i) {
    choices_[i].id = context_.engine->next_request_id();
    Request request = make_request(i);
    // Before submit: the first token may be on its way when it returns.
    context_.router->attach(choices_[i].id, this, i);
    const Status status = context_.engine->submit(std::move(request), context_.router);
    if (!status.is_ok()) {
      context_.router->detach(choices_[i].id);
      abort_running();
      return from_status(status);
    }
    ++num_running_;
  }
  request_.reset();
  context_.metrics->prompt_tokens().Increment(static_cast<double>(usage_.prompt_tokens));
  return std::nullopt;
}

void Generation::abort_running() {
  for (Choice& choice : choices_) {
    if (num_running_ > 0 && choice.id != 0 && choice.finish == FinishReason::kNone) {
      context_.router->detach(choice.id);
      context_.engine->abort(choice.id);
      choice.finish = FinishReason::kAbort;
      context_.metrics->count_finish(FinishReason::kAbort);
      --num_running_;
    }
  }
}

void Generation::cancel() {
  cancelled_ = true;
  abort_running();
}

void Generation::stop(ApiError error) {
  if (!done() && !cancelled_) {
    fail(std::move(error));
    on_progress_();
  }
}

void Generation::on_batch_end() {
  if (!cancelled_) {
    on_progress_();
  }
}

/// Whether the event's token is the stop id that ended the sequence: it has no text.
bool Generation::takes_stop_token(const TokenEvent& event) const {
  return event.finish == FinishReason::kStop && !ignore_eos_;
}

void Generation::time_token(Choice& choice, SteadyTime now) {
  if (choice.num_tokens == 0) {
    choice.first_token = now;
    context_.metrics->time_to_first_token().Observe(seconds(now - context_.arrival));
  } else {
    context_.metrics->inter_token_latency().Observe(seconds(now - choice.last_token));
  }
  choice.last_token = now;
}

void Generation::on_token(std::uint32_t index, const TokenEvent& event, SteadyTime now) {
  Choice& choice = choices_[index];
  if (done() || choice.finish != FinishReason::kNone) {
    return;
  }
  if (event.finish == FinishReason::kError || event.finish == FinishReason::kAbort) {
    choice.finish = event.finish;
    context_.router->detach(choice.id);
    context_.metrics->count_finish(event.finish);
    --num_running_;
    fail(event.finish == FinishReason::kError
             ? unavailable(event.error.empty() ? "The engine lost the request." : event.error,
                           "engine_error")
             : unavailable("The request was aborted by the server.", "request_aborted"));
    return;
  }
  const bool first = choice.num_tokens == 0;
  bool stop_string = false;
  ReasoningSplitter::Piece piece;
  if (event.token != kNoToken) {
    time_token(choice, now);
    ++choice.num_tokens;
    ++usage_.completion_tokens;
    context_.metrics->generated_tokens().Increment();
    if (first && index % choices_per_prompt_ == 0) {
      usage_.cached_tokens += event.num_cached_tokens;
    }
    if (!takes_stop_token(event)) {
      stop_string = choice.reader->push(event.token, choice.num_tokens > min_tokens_, piece);
      if (choice.logprobs) {
        choice.logprobs->add(event, *context_.model->text);
      }
    }
  }
  if (stop_string) {
    if (event.finish == FinishReason::kNone) {
      context_.engine->abort(choice.id);
    }
    finish_choice(choice, FinishReason::kStop, now);
  } else if (event.finish != FinishReason::kNone) {
    choice.reader->finish(piece);
    finish_choice(choice, event.finish, now);
  }
  if (!shows_reasoning_) {
    piece.reasoning.clear();
  }
  if (stream_) {
    write_event(index, piece, first);
  } else {
    choice.reasoning_text += piece.reasoning;
    choice.text += piece.content;
  }
}

void Generation::write_event(std::uint32_t index, const ReasoningSplitter::Piece& piece,
                             bool first) {
  Choice& choice = choices_[index];
  std::string_view text = piece.content;
  if (first && formatter_.chat()) {
    formatter_.append_role_event(events_, index);
    context_.metrics->events().Increment();
  }
  std::string with_echo;
  if (!choice.text.empty()) {
    with_echo = std::exchange(choice.text, {}).append(text);
    text = with_echo;
  }
  const bool has_logprobs = choice.logprobs && !choice.logprobs->empty();
  if (text.empty() && piece.reasoning.empty() && !has_logprobs &&
      choice.finish == FinishReason::kNone) {
    return;  // half a character, or what may become a stop string
  }
  formatter_.append_text_event(events_, index, {text, piece.reasoning},
                               has_logprobs ? choice.logprobs->take() : "null", choice.finish);
  context_.metrics->events().Increment();
}

void Generation::finish_choice(Choice& choice, FinishReason reason, SteadyTime now) {
  choice.finish = reason;
  choice.reader.reset();
  context_.router->detach(choice.id);
  context_.metrics->count_finish(reason);
  context_.metrics->request_latency().Observe(seconds(now - context_.arrival));
  if (choice.num_tokens > 1) {
    context_.metrics->time_per_output_token().Observe(
        seconds(choice.last_token - choice.first_token) / (choice.num_tokens - 1));
  }
  --num_running_;
}

void Generation::fail(ApiError error) {
  abort_running();
  error_ = std::move(error);
}

void Generation::append_last_events() {
  if (error_) {
    // No [DONE] after it: the answer is not complete.
    ResponseFormatter::append_error_event(events_, error_->to_json());
    return;
  }
  if (include_usage_) {
    formatter_.append_usage_event(events_, usage_);
    context_.metrics->events().Increment();
  }
  ResponseFormatter::append_done_event(events_);
}

std::string Generation::body() {
  std::string body = formatter_.begin_body();
  for (std::uint32_t i = 0; i < choices_.size(); ++i) {
    Choice& choice = choices_[i];
    formatter_.append_choice(body, i, {choice.text, choice.reasoning_text, shows_reasoning_},
                             choice.logprobs ? choice.logprobs->take() : "null", choice.finish);
  }
  formatter_.end_body(body, usage_);
  return body;
}

}  // namespace fastfd::gateway
