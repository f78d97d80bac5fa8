#pragma once

/// The parts of the OpenAI HTTP interface that the load generator speaks.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "bench/workload.h"
#include "fastfd/bench/serve_bench.h"

namespace fastfd::bench {

/// How requests are put to one server: found by probing it once.
struct Dialect {
  std::string model;
  Endpoint endpoint = Endpoint::kCompletions;
  bool ignore_eos = false;  ///< it knows ignore_eos and min_tokens
  bool usage = true;        ///< it knows stream_options.include_usage
  std::optional<double> temperature;
};

/// "/v1/completions" or "/v1/chat/completions"
const char* endpoint_path(Endpoint endpoint);

/// JSON body of a streaming request.
std::string request_body(const Dialect& dialect, const WorkItem& item);

/// What one event of a stream says.
struct StreamEvent {
  bool done = false;       ///< "[DONE]"
  bool malformed = false;  ///< no JSON, or neither chunk nor error
  bool has_token = false;  ///< carries generated text
  bool finished = false;   ///< carries a finish_reason
  bool has_usage = false;
  std::uint32_t prompt_tokens = 0;
  std::uint32_t output_tokens = 0;
  std::string error;  ///< message of an error event
};
StreamEvent parse_stream_event(std::string_view data);

/// The "message" of an OpenAI error body, else the start of the body.
std::string error_message(const std::string& body);

/// First model id of a GET /v1/models answer; empty if there is none.
std::string first_model(const std::string& body);

}  // namespace fastfd::bench
