#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "bench/metrics.h"
#include "bench/sse_parser.h"

namespace fastfd::bench {

/// How the bytes of an answer ended.
struct StreamEnd {
  bool cut = false;        ///< by an error, not where the answer says it ends
  bool timed_out = false;  ///< the cut was the time limit
  std::string reason;      ///< of the cut
};

/// Turns the bytes of one event stream into the record of its request.
class StreamReader {
 public:
  /// `token_chunks` counts over all requests.
  StreamReader(RequestRecord& record, std::uint64_t& token_chunks)
      : record_(record), token_chunks_(token_chunks) {}

  void feed(std::string_view bytes, double now_s);

  /// The stream is over. Completes the record.
  void finish(const StreamEnd& end, double now_s);

  /// "[DONE]" has come.
  bool done() const { return done_; }

 private:
  void on_event(std::string_view data, double now_s);
  void on_token(double now_s);
  void fail(FailureKind kind, std::string detail);

  RequestRecord& record_;
  std::uint64_t& token_chunks_;
  SseParser parser_;
  std::uint32_t num_chunks_ = 0;
  double last_token_s_ = 0;
  bool has_usage_ = false;
  bool finished_ = false;
  bool done_ = false;
};

}  // namespace fastfd::bench
