#pragma once

/// `fastfd bench serve`: load on any OpenAI-compatible HTTP server, and what its clients would see.

#include <cstdint>
#include <filesystem>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>

#include "fastfd/core/printable.h"

namespace fastfd::bench {

/// The benchmark can't run: server out of reach, dataset unreadable, option out of range. what()
/// names cause and remedy.
class BenchError : public std::runtime_error {
 public:
  explicit BenchError(std::string_view what) : std::runtime_error(printable(what)) {}
};

enum class Endpoint : std::uint8_t { kCompletions, kChat };

enum class PromptKind : std::uint8_t {
  kAuto,    ///< token ids where the server takes them, else text
  kTokens,  ///< random token ids: exact lengths; completions only
  kText,    ///< random words, as many as a probe says give the length
};

/// Service level objective of one request. A request is good when it meets every bound given.
struct Slo {
  std::optional<double> ttft_ms;  ///< time to first token
  std::optional<double> tpot_ms;  ///< time per output token after the first
  std::optional<double> e2e_ms;   ///< whole request

  bool empty() const { return !ttft_ms && !tpot_ms && !e2e_ms; }
};

/// Parses "ttft=200ms,tpot=30ms,e2e=2s"; units us, ms (default), s. Throws BenchError.
Slo parse_slo(const std::string& text);

struct ServeBenchOptions {
  std::string url = "http://127.0.0.1:8000";  ///< http://host[:port][/prefix], with or without /v1
  std::string model;                          ///< empty: the first of GET /v1/models
  std::string api_key;                        ///< sent as a bearer token when not empty
  Endpoint endpoint = Endpoint::kCompletions;

  /// Requests per second, Poisson arrivals. Not set: closed loop of `concurrency`.
  std::optional<double> request_rate;
  /// Most requests in flight; 0: 8 in a closed loop, no limit with a request rate. With both, an
  /// arrival that has to wait is timed from its arrival, so that an overload can't hide.
  std::uint32_t concurrency = 0;
  std::uint64_t num_requests = 0;  ///< 0: no limit; 100 if `duration_s` is 0 too
  double duration_s = 0;           ///< no request starts later; those in flight may finish

  std::uint32_t input_len = 128;  ///< tokens of a synthetic prompt
  std::uint32_t output_len = 64;  ///< tokens asked of a synthetic request
  double range_ratio = 0;         ///< lengths are uniform in len * [1 - ratio, 1 + ratio]; [0, 1)
  PromptKind prompt_kind = PromptKind::kAuto;
  std::uint32_t vocab_size = 1000;  ///< random token ids are smaller than this
  std::filesystem::path dataset;    ///< ShareGPT-format JSON instead of synthetic prompts
  std::uint64_t seed = 0;
  std::uint32_t num_warmup = 4;  ///< requests before the measurement
  /// Ask for exactly the output length (ignore_eos, min_tokens) where the server knows how.
  bool ignore_eos = true;
  std::optional<double> temperature;  ///< not set: the server's default
  double timeout_s = 600;             ///< of one request

  Slo slo;
  std::filesystem::path json_file;  ///< empty: none; "-": to stdout instead of the table
  std::filesystem::path html_file;  ///< empty: none
};

/// Runs the benchmark, shows progress on stderr and the table on stdout. Returns the exit status:
/// 0, 1 when no request succeeded, more than half failed or the server was away for 30 s, 130 when
/// interrupted; what was measured is reported in any case. Blocks; handles SIGINT and SIGTERM
/// meanwhile. Throws BenchError, for report files that can't be written before it measures.
int run_serve_bench(const ServeBenchOptions& options);

}  // namespace fastfd::bench
