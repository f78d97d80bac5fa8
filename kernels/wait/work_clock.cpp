#include "kernels/wait/work_clock.h"

namespace fastfd::kernels {

void WorkClock::add(std::span<const layout::HopTimes> waits, const layout::HopTimes& step) {
  planned_.add(step.begin_ns, step.end_ns);
  std::uint64_t since = step.begin_ns;
  for (const layout::HopTimes& wait : waits) {
    working_.add(since, wait.begin_ns);
    since = wait.end_ns;
  }
  working_.add(since, step.end_ns);
}

}  // namespace fastfd::kernels
