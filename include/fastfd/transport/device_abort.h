#pragma once

#include "fastfd/core/ids.h"
#include "fastfd/core/status.h"
#include "kernels/layout/lane_control.h"

namespace fastfd::transport {

/// Why kernels of a server of role `self` gave up, as an error that names the peer, step, layer and
/// lane; kAborted if the host asked for it. Requires abort.aborted.
Status describe_abort(const layout::AbortState& abort, Role self);

}  // namespace fastfd::transport
