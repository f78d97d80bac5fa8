#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "bench/metrics.h"
#include "bench/openai_api.h"
#include "bench/url.h"
#include "bench/workload.h"

namespace fastfd::bench {

/// When requests start.
struct Arrivals {
  std::optional<double> request_rate;  ///< per second, Poisson; not set: closed loop
  std::uint32_t concurrency = 0;       ///< most in flight; 0: no limit (with a request rate only)
  std::uint64_t num_requests = 0;      ///< 0: no limit
  double duration_s = 0;               ///< 0: no limit
  std::uint64_t seed = 0;
  std::uint64_t first_item = 0;  ///< index of the first work item
  /// A closed loop ends when no connection has been answered for so long.
  double give_up_after_s = 30;
};

/// How far a run is; told about ten times a second.
struct LoadProgress {
  double elapsed_s = 0;
  std::uint64_t started = 0, finished = 0, failed = 0;
  std::uint64_t token_chunks = 0;  ///< received so far
};

/// An answer read as a whole.
struct WholeReply {
  bool connected = false;  ///< false: `error` says why
  std::string error;
  int status = 0;
  std::string body;
};

struct LoadResult {
  std::vector<RequestRecord> records;  ///< in order of their start
  bool interrupted = false;
  bool given_up = false;  ///< the server was away for Arrivals::give_up_after_s
};

/// Sends requests to one server from one thread, over connections that are kept and reused. Not
/// thread-safe.
class LoadGenerator {
 public:
  /// Resolves the host and raises the soft limit of open files to the hard one. Throws BenchError
  /// for an unknown host.
  LoadGenerator(const Url& url, std::string api_key, double timeout_s);
  ~LoadGenerator();
  LoadGenerator(const LoadGenerator&) = delete;
  LoadGenerator& operator=(const LoadGenerator&) = delete;

  /// GET; blocks until the answer is there or the timeout is over.
  WholeReply get(const std::string& path);

  /// Runs until all requests have ended. SIGINT or SIGTERM ends it early: what is in flight is
  /// recorded as interrupted. No request is left out of the result. A client of the closed loop
  /// that gets no answer to its connection waits before the next, longer each time.
  LoadResult run(const Dialect& dialect, const Workload& workload, const Arrivals& arrivals,
                 const std::function<void(const LoadProgress&)>& on_progress);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace fastfd::bench
