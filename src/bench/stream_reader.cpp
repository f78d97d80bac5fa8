#include "bench/stream_reader.h"

#include <utility>

#include "bench/openai_api.h"

namespace fastfd::bench {

void StreamReader::feed(std::string_view bytes, double now_s) {
  parser_.feed(bytes, [&](std::string_view data) { on_event(data, now_s); });
}

void StreamReader::finish(const StreamEnd& end, double now_s) {
  parser_.finish([&](std::string_view data) { on_event(data, now_s); });
  if (!done_) {
    record_.end_s = now_s;
  }
  if (!has_usage_) {
    record_.output_tokens = num_chunks_;
  }
  if (record_.failure != FailureKind::kCancelled) {
    return;  // an event said what went wrong
  }
  if (done_ || (finished_ && !end.cut)) {
    record_.failure = FailureKind::kNone;
  } else if (end.timed_out) {
    fail(FailureKind::kTimeout, "no end of the stream in time");
  } else {
    fail(FailureKind::kBrokenStream,
         end.cut ? end.reason : "the stream ended without [DONE] or a finish reason");
  }
}

void StreamReader::on_event(std::string_view data, double now_s) {
  const StreamEvent event = parse_stream_event(data);
  if (event.malformed) {
    constexpr std::size_t kShownChars = 200;
    fail(FailureKind::kMalformed, "unexpected event: " + std::string(data.substr(0, kShownChars)));
  } else if (!event.error.empty()) {
    fail(FailureKind::kServerError, event.error);
  }
  if (event.has_usage) {
    has_usage_ = true;
    record_.prompt_tokens = event.prompt_tokens;
    record_.output_tokens = event.output_tokens;
  }
  if (event.has_token) {
    on_token(now_s);
  }
  finished_ = finished_ || event.finished;
  if (event.done) {
    done_ = true;
    record_.end_s = now_s;
  }
}

void StreamReader::on_token(double now_s) {
  ++num_chunks_;
  ++token_chunks_;
  if (record_.has_token) {
    record_.token_gaps_ms.push_back(static_cast<float>((now_s - last_token_s_) * 1e3));
  } else {
    record_.has_token = true;
    record_.first_token_s = now_s;
  }
  last_token_s_ = now_s;
}

void StreamReader::fail(FailureKind kind, std::string detail) {
  if (record_.failure == FailureKind::kCancelled) {
    record_.failure = kind;
    record_.failure_detail = std::move(detail);
  }
}

}  // namespace fastfd::bench
