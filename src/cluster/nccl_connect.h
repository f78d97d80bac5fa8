#pragma once

#include <cstdint>

#include "cluster/members.h"
#include "fastfd/cluster/blueprint.h"
#include "fastfd/transport/nccl.h"

namespace fastfd::cluster {

/// What a server's endpoint is made of: listens where the coordinator's host reaches it. Throws
/// config::ConfigError if there is no way to that host.
transport::NcclEndpointOptions nccl_endpoint_options(const Blueprint& blueprint, Role role,
                                                     ServerRank rank, std::uint64_t incarnation);

/// Connect function of either role over an endpoint, which must outlive it: everybody whom the
/// topology names.
Connect<transport::DevicePort> nccl_connect(transport::NcclEndpoint& endpoint);

}  // namespace fastfd::cluster
