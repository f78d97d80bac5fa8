#pragma once

#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>

#include <string>
#include <string_view>
#include <vector>

#include "fastfd/core/engine_client.h"
#include "fastfd/core/request.h"

namespace fastfd::gateway {

/// What the gateway measures itself. Updates may come from any thread. Times are in seconds and are
/// those of the gateway: from the complete HTTP request to tokens ready to be written.
class GatewayMetrics {
 public:
  GatewayMetrics();

  void count_response(std::string_view endpoint, int status);
  void count_finish(FinishReason reason);

  prometheus::Gauge& connections() { return connections_; }
  prometheus::Gauge& active_requests() { return active_requests_; }
  prometheus::Counter& disconnects() { return disconnects_; }
  prometheus::Counter& prompt_tokens() { return prompt_tokens_; }
  prometheus::Counter& generated_tokens() { return generated_tokens_; }
  prometheus::Counter& events() { return events_; }
  prometheus::Histogram& time_to_first_token() { return time_to_first_token_; }
  prometheus::Histogram& inter_token_latency() { return inter_token_latency_; }
  prometheus::Histogram& time_per_output_token() { return time_per_output_token_; }
  prometheus::Histogram& request_latency() { return request_latency_; }

  /// The Prometheus text format: the gateway's metrics and then the engine's.
  std::string to_text(const std::vector<EngineMetric>& engine) const;

 private:
  prometheus::Gauge& gauge(const char* name, const char* help);
  prometheus::Counter& counter(const char* name, const char* help);
  prometheus::Histogram& seconds(const char* name, const char* help,
                                 const std::vector<double>& bounds);

  prometheus::Registry registry_;
  prometheus::Family<prometheus::Counter>& responses_;
  prometheus::Family<prometheus::Counter>& finishes_;
  prometheus::Gauge& connections_;
  prometheus::Gauge& active_requests_;
  prometheus::Counter& disconnects_;
  prometheus::Counter& prompt_tokens_;
  prometheus::Counter& generated_tokens_;
  prometheus::Counter& events_;
  prometheus::Histogram& time_to_first_token_;
  prometheus::Histogram& inter_token_latency_;
  prometheus::Histogram& time_per_output_token_;
  prometheus::Histogram& request_latency_;
};

}  // namespace fastfd::gateway
