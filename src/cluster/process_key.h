#pragma once

#include <cstdint>
#include <string>

#include "fastfd/core/status.h"

namespace fastfd::cluster {

/// With the pid, tells this process from every other: boot id of the host, PID namespace,
/// and start time in clock ticks. Empty if /proc doesn't say.
std::string own_process_key();

/// SIGKILL to process `pid`, but only if it is the one that `process_key` names and lives in this
/// process's host and PID namespace: a pid from elsewhere, or given out anew, names a stranger. OK
/// also if that process is gone already. kUnavailable: death can't be brought about from here.
Status kill_process(std::uint32_t pid, const std::string& process_key);

}  // namespace fastfd::cluster
