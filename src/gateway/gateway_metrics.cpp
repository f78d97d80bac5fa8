#include "gateway/gateway_metrics.h"

#include <prometheus/text_serializer.h>

#include <algorithm>
#include <sstream>

namespace fastfd::gateway {
namespace {

using prometheus::MetricFamily;
using prometheus::MetricType;

const std::vector<double> kTokenBounds = {0.001, 0.0025, 0.005, 0.0075, 0.01, 0.015, 0.02,
                                          0.03,  0.04,   0.05,  0.075,  0.1,  0.15,  0.2,
                                          0.3,   0.5,    0.75,  1.0,    2.5};
const std::vector<double> kFirstTokenBounds = {0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08,
                                               0.1,   0.25,  0.5,  0.75, 1.0,  2.5,  5.0,
                                               7.5,   10.0,  20.0, 40.0, 80.0, 160.0};
const std::vector<double> kRequestBounds = {0.05, 0.1,  0.25, 0.5,  1.0,  1.5,   2.0,   2.5,  5.0,
                                            10.0, 15.0, 20.0, 30.0, 60.0, 120.0, 240.0, 480.0};

MetricFamily& family_of(std::vector<MetricFamily>& families, const EngineMetric& metric) {
  const auto found = std::find_if(families.begin(), families.end(),
                                  [&](const MetricFamily& f) { return f.name == metric.name; });
  if (found != families.end()) {
    return *found;
  }
  MetricFamily family;
  family.name = metric.name;
  family.help = metric.help;
  family.type =
      metric.kind == EngineMetric::Kind::kCounter ? MetricType::Counter : MetricType::Gauge;
  return families.emplace_back(std::move(family));
}

std::vector<MetricFamily> to_families(const std::vector<EngineMetric>& metrics) {
  std::vector<MetricFamily> families;
  for (const EngineMetric& metric : metrics) {
    prometheus::ClientMetric value;
    for (const auto& [name, text] : metric.labels) {
      value.label.push_back({name, text});
    }
    (metric.kind == EngineMetric::Kind::kCounter ? value.counter.value : value.gauge.value) =
        metric.value;
    family_of(families, metric).metric.push_back(std::move(value));
  }
  return families;
}

}  // namespace

GatewayMetrics::GatewayMetrics()
    : responses_(prometheus::BuildCounter()
                     .Name("fastfd_http_responses_total")
                     .Help("HTTP responses by endpoint and status")
                     .Register(registry_)),
      finishes_(prometheus::BuildCounter()
                    .Name("fastfd_gateway_finished_sequences_total")
                    .Help("Sequences that ended, by finish reason")
                    .Register(registry_)),
      connections_(gauge("fastfd_http_connections", "Open client connections")),
      active_requests_(gauge("fastfd_http_active_requests", "Generation requests in progress")),
      disconnects_(counter("fastfd_http_disconnects_total",
                           "Generation requests whose client went away before the end")),
      prompt_tokens_(
          counter("fastfd_gateway_prompt_tokens_total", "Prompt tokens of accepted requests")),
      generated_tokens_(counter("fastfd_gateway_generated_tokens_total", "Tokens sent to clients")),
      events_(counter("fastfd_gateway_sse_events_total", "Server-sent events written")),
      time_to_first_token_(seconds("fastfd_gateway_time_to_first_token_seconds",
                                   "From a request's arrival to its first token",
                                   kFirstTokenBounds)),
      inter_token_latency_(seconds("fastfd_gateway_inter_token_latency_seconds",
                                   "Between two tokens of a sequence", kTokenBounds)),
      time_per_output_token_(seconds("fastfd_gateway_time_per_output_token_seconds",
                                     "Mean over a sequence of the time between its tokens",
                                     kTokenBounds)),
      request_latency_(seconds("fastfd_gateway_request_latency_seconds",
                               "From a request's arrival to its last token", kRequestBounds)) {}

prometheus::Gauge& GatewayMetrics::gauge(const char* name, const char* help) {
  return prometheus::BuildGauge().Name(name).Help(help).Register(registry_).Add({});
}

prometheus::Counter& GatewayMetrics::counter(const char* name, const char* help) {
  return prometheus::BuildCounter().Name(name).Help(help).Register(registry_).Add({});
}

prometheus::Histogram& GatewayMetrics::seconds(const char* name, const char* help,
                                               const std::vector<double>& bounds) {
  return prometheus::BuildHistogram().Name(name).Help(help).Register(registry_).Add({}, bounds);
}

void GatewayMetrics::count_response(std::string_view endpoint, int status) {
  responses_.Add({{"endpoint", std::string(endpoint)}, {"status", std::to_string(status)}})
      .Increment();
}

void GatewayMetrics::count_finish(FinishReason reason) {
  finishes_.Add({{"reason", to_string(reason)}}).Increment();
}

std::string GatewayMetrics::to_text(const std::vector<EngineMetric>& engine) const {
  std::vector<MetricFamily> families = registry_.Collect();
  std::vector<MetricFamily> of_engine = to_families(engine);
  families.insert(families.end(), of_engine.begin(), of_engine.end());
  std::ostringstream out;
  prometheus::TextSerializer().Serialize(out, families);
  return out.str();
}

}  // namespace fastfd::gateway
