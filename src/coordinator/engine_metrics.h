#pragma once

#include <vector>

#include "coordinator/work_meters.h"
#include "fastfd/core/engine_client.h"
#include "fastfd/scheduler/scheduler.h"

namespace fastfd::coordinator {

/// Everything /metrics shows of the engine. `members_joined` counts servers with a live stream.
struct MetricSources {
  const scheduler::SchedulerStats& scheduler;
  const WorkMeters& work;
  Epoch epoch;
  bool serving;
  std::uint64_t late_reports;
  std::vector<std::pair<Role, std::uint32_t>> members_joined;
};

std::vector<EngineMetric> make_metrics(const MetricSources& sources, SteadyTime now);

}  // namespace fastfd::coordinator
