#include "fastfd/transport/device_abort.h"

#include <fmt/format.h>

namespace fastfd::transport {

Status describe_abort(const layout::AbortState& abort, Role self) {
  const std::string where =
      fmt::format("step {} layer {} lane {}", abort.step, abort.layer, abort.lane);
  const std::string peer =
      fmt::format("{} server {}", self == Role::kAttention ? "FFN" : "attention", abort.peer);
  switch (abort.reason) {
    case layout::AbortReason::kHostAsked:
      return {StatusCode::kAborted,
              fmt::format("epoch abandoned while {} waited for {}, {:.1f} ms by then", where, peer,
                          static_cast<double>(abort.waited_ns) * 1e-6)};
    case layout::AbortReason::kTimedOut:
      return {StatusCode::kDeadlineExceeded,
              fmt::format("{} sent nothing for {} within {:.1f} s", peer, where,
                          static_cast<double>(abort.waited_ns) * 1e-9)};
    case layout::AbortReason::kBadMessage:
      return {StatusCode::kInternal,
              fmt::format("what {} sent for {} does not fit it", peer, where)};
    case layout::AbortReason::kBadPlacement:
      return {StatusCode::kInternal,
              fmt::format("an expert of {} is placed on {}, which is not connected", where, peer)};
    case layout::AbortReason::kBadPlan:
      return {StatusCode::kInternal,
              fmt::format("{} has more rows than the shape bucket of its plan", where)};
  }
  return {StatusCode::kInternal, "unknown"};
}

}  // namespace fastfd::transport
