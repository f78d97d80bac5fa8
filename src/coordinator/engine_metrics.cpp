#include "coordinator/engine_metrics.h"

#include <string>
#include <utility>

namespace fastfd::coordinator {
namespace {

using Labels = std::vector<std::pair<std::string, std::string>>;
using Kind = EngineMetric::Kind;

class MetricList {
 public:
  template <typename T>
  void gauge(std::string name, std::string help, T value, Labels labels = {}) {
    add(std::move(name), std::move(help), Kind::kGauge, static_cast<double>(value),
        std::move(labels));
  }
  template <typename T>
  void counter(std::string name, std::string help, T value, Labels labels = {}) {
    add(std::move(name), std::move(help), Kind::kCounter, static_cast<double>(value),
        std::move(labels));
  }
  std::vector<EngineMetric> take() { return std::move(metrics_); }

 private:
  void add(std::string name, std::string help, Kind kind, double value, Labels labels) {
    metrics_.push_back({std::move(name), std::move(help), kind, std::move(labels), value});
  }
  std::vector<EngineMetric> metrics_;
};

void add_scheduler(const scheduler::SchedulerStats& stats, MetricList* list) {
  list->gauge("fastfd_running_requests", "Sequences that hold pages", stats.running);
  list->gauge("fastfd_queued_requests", "Sequences that wait for room", stats.queued);
  list->counter("fastfd_requests_finished_total",
                "Sequences that ended by a stop token or their length", stats.requests_finished);
  list->counter("fastfd_tokens_generated_total", "Tokens sent to clients", stats.tokens_generated);
  list->counter("fastfd_tokens_dropped_total", "Tokens computed past an end that was seen late",
                stats.tokens_dropped);
  list->counter("fastfd_prompt_tokens_computed_total", "Prompt tokens that were prefilled",
                stats.prompt_tokens_computed);
  list->counter("fastfd_prompt_tokens_cached_total",
                "Prompt tokens computed before: cached, or for another choice",
                stats.prompt_tokens_cached);
  list->counter("fastfd_kv_pages_copied_total", "Partial prompt pages copied for another choice",
                stats.pages_copied);
  list->counter("fastfd_preemptions_total", "Sequences put back to be recomputed",
                stats.preemptions);
  list->counter("fastfd_lane_barriers_total", "Bubbles by moving rows between lanes",
                stats.lane_barriers);
  list->counter("fastfd_steps_planned_total", "Steps published", stats.steps_planned);
  list->counter("fastfd_steps_committed_total", "Steps whose results all came",
                stats.steps_committed);
  list->counter("fastfd_multi_lane_steps_total", "Committed steps that could have overlapped",
                stats.multi_lane_steps);
  list->counter("fastfd_overlapped_steps_total",
                "Committed steps whose lane 0 began before the step before had ended",
                stats.overlapped_steps);
  list->gauge("fastfd_lanes", "Microbatches in use", stats.num_lanes);
  for (std::size_t rank = 0; rank < stats.free_pages.size(); ++rank) {
    list->gauge("fastfd_kv_free_pages", "KV pages that hold nothing", stats.free_pages[rank],
                {{"attention_rank", std::to_string(rank)}});
  }
  for (std::size_t rank = 0; rank < stats.cached_pages.size(); ++rank) {
    list->gauge("fastfd_kv_cached_pages", "KV pages kept for their prefix only",
                stats.cached_pages[rank], {{"attention_rank", std::to_string(rank)}});
  }
}

void add_work(const char* role, const std::vector<WorkTime>& servers, const PoolMeter& pool,
              SteadyTime now, MetricList* list) {
  for (std::size_t rank = 0; rank < servers.size(); ++rank) {
    const Labels labels{{"role", role}, {"rank", std::to_string(rank)}};
    list->counter("fastfd_server_compute_seconds_total", "Time a server's loop computed",
                  servers[rank].compute_us / 1e6, labels);
    list->counter("fastfd_server_wait_seconds_total",
                  "Time a server's loop waited for the other pool", servers[rank].wait_us / 1e6,
                  labels);
  }
  const WorkTime shares = pool.shares(now);
  list->gauge("fastfd_pool_compute_share", "Share of the last seconds that a pool computed",
              shares.compute_us, {{"role", role}});
  list->gauge("fastfd_pool_wait_share",
              "Share of the last seconds that a pool waited for the other", shares.wait_us,
              {{"role", role}});
}

}  // namespace

std::vector<EngineMetric> make_metrics(const MetricSources& sources, SteadyTime now) {
  MetricList list;
  list.gauge("fastfd_ready", "1 while the cluster serves", sources.serving ? 1 : 0);
  list.gauge("fastfd_epoch", "Version of the membership", sources.epoch);
  for (const auto& [role, count] : sources.members_joined) {
    list.gauge("fastfd_servers_joined", "Servers with a live stream", count,
               {{"role", to_string(role)}});
  }
  list.counter("fastfd_late_reports_total",
               "Results of an old epoch or incarnation that were dropped", sources.late_reports);
  add_scheduler(sources.scheduler, &list);
  add_work("attention", sources.work.attention(), sources.work.attention_pool(), now, &list);
  add_work("ffn", sources.work.ffn(), sources.work.ffn_pool(), now, &list);
  return list.take();
}

}  // namespace fastfd::coordinator
