#pragma once

#include "cluster/server_process.h"

namespace fastfd::cluster {

// A co-located rank as a process: an attention and an FFN server for the coordinator, one loop and
// one device for both. Return as ServerProcess::serve does.

/// One rank, one thread for both halves.
int serve_colocated(ServerProcess& process);

/// Both halves on the rank's GPU; several ranks exchange tokens through windows in each other's
/// memory.
int serve_gpu_colocated(ServerProcess& process);

}  // namespace fastfd::cluster
