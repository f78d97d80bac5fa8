#pragma once

#include "cluster/members.h"
#include "fastfd/transport/cuda_ipc.h"
#include "fastfd/transport/shm.h"

namespace fastfd::cluster {

/// Connect functions over an endpoint, which must outlive them: the peers of the other role, as the
/// topology names them.
Connect<transport::AttentionPort> shm_attention_connect(transport::ShmEndpoint& endpoint);
Connect<transport::FfnPort> shm_ffn_connect(transport::ShmEndpoint& endpoint);
/// `peer_role`: the other role.
Connect<transport::DevicePort> device_connect(transport::DeviceEndpoint& endpoint, Role peer_role);

}  // namespace fastfd::cluster
