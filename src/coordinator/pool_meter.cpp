#include "coordinator/pool_meter.h"

#include <algorithm>

namespace fastfd::coordinator {

void PoolMeter::add(const WorkTime& work, SteadyTime now) {
  if (samples_.empty() || now - samples_.back().time >= kSpacing) {
    samples_.push_back({now, total_});
    while (samples_.size() > 1 && now - samples_[1].time >= kWindow) {
      samples_.pop_front();
    }
  }
  total_.compute_us += work.compute_us;
  total_.wait_us += work.wait_us;
}

WorkTime PoolMeter::shares(SteadyTime now) const {
  // The newest sample that is a window old, or the oldest there is.
  const Sample* from = nullptr;
  for (const auto& sample : samples_) {
    if (from == nullptr || now - sample.time >= kWindow) {
      from = &sample;
    }
  }
  if (from == nullptr || now <= from->time) {
    return {};
  }
  const double wall_us =
      std::chrono::duration<double, std::micro>(now - from->time).count() * num_servers_;
  return {std::clamp((total_.compute_us - from->total.compute_us) / wall_us, 0.0, 1.0),
          std::clamp((total_.wait_us - from->total.wait_us) / wall_us, 0.0, 1.0)};
}

}  // namespace fastfd::coordinator
