#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "fastfd/core/engine_client.h"
#include "fastfd/gateway/gateway_server.h"
#include "gateway/answer_reader.h"
#include "gateway/api_error.h"
#include "gateway/gateway_metrics.h"
#include "gateway/generation_request.h"
#include "gateway/response_format.h"
#include "gateway/token_router.h"

namespace fastfd::gateway {

/// What a generation needs of its surroundings; all outlive it.
struct GenerationContext {
  EngineClient* engine = nullptr;
  TokenRouter* router = nullptr;
  GatewayMetrics* metrics = nullptr;
  std::shared_ptr<const ServedModel> model;
  std::uint64_t random_seed = 0;  ///< for requests that bring none
  SteadyTime arrival{};
};

/// One chat or completion request from submission to last token: prompts x n sequences of the
/// engine, their text, stop strings, usage, and the JSON of the response. Knows nothing of sockets.
/// Gateway thread only.
class Generation final : public TokenReceiver {
 public:
  /// `on_progress` is called after events() grew or done() became true, once a batch of tokens.
  Generation(GenerationRequest request, GenerationContext context,
             std::function<void()> on_progress);
  /// As cancel().
  ~Generation() override;
  Generation(const Generation&) = delete;
  Generation& operator=(const Generation&) = delete;

  /// Submits every sequence; if one is refused, none runs and the reason is returned.
  std::optional<ApiError> start();

  /// The client is gone: aborts what still runs. on_progress is not called any more.
  void cancel();

  /// Ends what still runs with `error`, as if the engine had reported it.
  void stop(ApiError error);

  bool stream() const { return stream_; }
  /// Every sequence has ended, or error() is set.
  bool done() const { return num_running_ == 0 || error_.has_value(); }
  const std::optional<ApiError>& error() const { return error_; }
  /// Server-sent events not yet written. The caller writes and clears them.
  std::string& events() { return events_; }
  /// What ends the events of a stream that is done: usage if asked for, or the error.
  void append_last_events();
  /// The response's JSON when it is not streamed, once done without error.
  std::string body();

  void on_token(std::uint32_t choice, const TokenEvent& event, SteadyTime now) override;
  void on_batch_end() override;

 private:
  struct Choice {
    RequestId id = 0;
    std::unique_ptr<AnswerReader> reader;
    std::string reasoning_text;  // not streamed: all of it
    std::string text;  // not streamed: all of it; streamed: what waits for the first event (echo)
    std::unique_ptr<LogprobsJson> logprobs;  // null: not asked for
    std::uint32_t num_tokens = 0;
    FinishReason finish = FinishReason::kNone;
    SteadyTime first_token{};
    SteadyTime last_token{};
  };

  Request make_request(std::uint32_t choice);
  AnswerForm answer_form() const;
  bool takes_stop_token(const TokenEvent& event) const;
  void time_token(Choice& choice, SteadyTime now);
  void write_event(std::uint32_t index, const ReasoningSplitter::Piece& piece, bool first);
  void finish_choice(Choice& choice, FinishReason reason, SteadyTime now);
  void fail(ApiError error);
  void abort_running();

  GenerationContext context_;
  std::function<void()> on_progress_;
  bool stream_;
  bool include_usage_;
  std::uint32_t choices_per_prompt_;
  std::uint32_t min_tokens_;
  bool ignore_eos_;
  bool shows_reasoning_;
  ResponseFormatter formatter_;
  std::vector<Choice> choices_;
  std::optional<GenerationRequest> request_;  // until start() has submitted it
  std::uint32_t num_running_ = 0;
  bool cancelled_ = false;
  Usage usage_;
  std::optional<ApiError> error_;
  std::string events_;
};

/// The seed of choice `index` of a request: the request's own for the first, so that n = 1 and the
/// first of many agree.
std::uint64_t choice_seed(std::uint64_t seed, std::uint32_t index);

}  // namespace fastfd::gateway
