#pragma once

/// From what happened to each request to the figures of the report. Pure arithmetic.

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "fastfd/bench/serve_bench.h"

namespace fastfd::bench {

enum class FailureKind : std::uint8_t {
  kNone,
  kConnect,       ///< no connection
  kTimeout,       ///< longer than the limit of a request
  kHttpStatus,    ///< an answer other than 200
  kBrokenStream,  ///< the stream ended before its last event
  kMalformed,     ///< not HTTP, or an event that is no JSON of the expected form
  kServerError,   ///< an error event inside a stream that began with 200
  kCancelled,     ///< in flight when the benchmark was interrupted
};

/// One request. Times are seconds since the start of the measurement.
struct RequestRecord {
  double start_s = 0;        ///< when it was due (request rate) or was sent (closed loop)
  double first_token_s = 0;  ///< valid if has_token
  double end_s = 0;
  bool has_token = false;
  std::vector<float> token_gaps_ms;  ///< between consecutive chunks that carry tokens
  std::uint32_t prompt_tokens = 0;
  std::uint32_t output_tokens = 0;
  FailureKind failure = FailureKind::kCancelled;  ///< until it ended otherwise
  int http_status = 0;
  std::string failure_detail;

  bool ok() const { return failure == FailureKind::kNone; }
  double ttft_ms() const { return (first_token_s - start_s) * 1e3; }
  double e2e_ms() const { return (end_s - start_s) * 1e3; }
  /// Mean time of the tokens after the first; 0 with fewer than two.
  double tpot_ms() const;
  /// "timeout", "http 429", ...: what failures are counted by.
  std::string failure_name() const;
};

/// Percentiles interpolate linearly between the closest ranks (NumPy's default).
struct Distribution {
  std::size_t count = 0;
  double mean = 0, p50 = 0, p90 = 0, p99 = 0, min = 0, max = 0;
};
Distribution describe(std::vector<double> samples);

/// `sorted` ascending and not empty, 0 <= q <= 1.
double percentile(const std::vector<double>& sorted, double q);

bool meets(const RequestRecord& record, const Slo& slo);

struct FailureCount {
  std::uint64_t count = 0;
  std::string example;  ///< detail of the first one
};

struct Summary {
  double duration_s = 0;  ///< first start to last end
  std::uint64_t num_requests = 0, num_ok = 0, num_good = 0;
  std::map<std::string, FailureCount> failures;
  std::uint64_t prompt_tokens = 0, output_tokens = 0;  ///< of successful requests
  double request_throughput = 0;                       ///< successful requests per second
  double output_throughput = 0;                        ///< tokens per second
  double total_throughput = 0;                         ///< prompt and output tokens per second
  double goodput = 0;                                  ///< good requests per second
  std::uint64_t peak_concurrency = 0;
  Distribution ttft_ms, tpot_ms, itl_ms, e2e_ms;
};
Summary summarize(const std::vector<RequestRecord>& records, const Slo& slo);

}  // namespace fastfd::bench
