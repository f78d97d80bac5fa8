#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "fastfd/core/ids.h"
#include "fastfd/core/request.h"
#include "fastfd/core/status.h"

namespace fastfd {

/// Where committed tokens go. Called on the engine's thread with everything one commit brought, so
/// that an HTTP server can write several streams at once; must not block.
class TokenSink {
 public:
  virtual ~TokenSink() = default;
  virtual void on_events(std::vector<TokenEvent> events) = 0;
};

/// A number for /metrics: "fastfd_running_requests" with its help text.
struct EngineMetric {
  enum class Kind : std::uint8_t { kCounter, kGauge };
  std::string name;
  std::string help;
  Kind kind = Kind::kGauge;
  std::vector<std::pair<std::string, std::string>> labels;
  double value = 0.0;
};

struct EngineState {
  bool ready = false;  ///< every server joined and holds its weights
  bool draining = false;
  std::string detail;  ///< what is missing: "waiting for FFN server 1"
};

/// The engine as the HTTP gateway sees it. Every function may be called from any thread and none
/// blocks for longer than a mutex.
class EngineClient {
 public:
  virtual ~EngineClient() = default;

  /// Queues a sequence. kInvalidArgument: it can never run (too long for the model or for one
  /// server's pages); kResourceExhausted: the queue is full, retry; kUnavailable: the cluster is
  /// not ready or draining. After ok the sink gets events until one has `finish` set, or abort().
  virtual Status submit(Request request, TokenSink* sink) = 0;

  /// The client is gone, or found what it looked for (a stop string): the request is in no later
  /// plan and gets no further events, except those already on their way. Unknown ids are ignored.
  virtual void abort(RequestId id) = 0;

  virtual RequestId next_request_id() = 0;
  virtual EngineState state() const = 0;
  virtual std::vector<EngineMetric> metrics() const = 0;
};

}  // namespace fastfd
