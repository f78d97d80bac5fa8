#pragma once

/// Values <-> generated protobuf messages. The from_proto functions trust nothing: they return a
/// message for people, empty when all is well.

#include <string>

#include "fastfd/control_plane/messages.h"
#include "fastfd/v1/cluster.pb.h"

namespace fastfd::control_plane {

using ConvertError = std::string;

// Plans and results (plan_convert.cpp). The targets must be cleared; their capacity is reused.
void to_proto(const AttentionStepPlan& plan, v1::AttentionStepPlan* proto);
void to_proto(const FfnStepPlan& plan, v1::FfnStepPlan* proto);
void to_proto(const LaneResult& result, v1::LaneResult* proto);
ConvertError from_proto(const v1::AttentionStepPlan& proto, AttentionStepPlan* plan);
ConvertError from_proto(const v1::FfnStepPlan& proto, FfnStepPlan* plan);
ConvertError from_proto(const v1::LaneResult& proto, LaneResult* result);

// Whole messages (message_convert.cpp).
void to_proto(const ServerMessage& message, v1::ServerMessage* proto);
void to_proto(const CoordinatorMessage& message, v1::CoordinatorMessage* proto);
ConvertError from_proto(const v1::ServerMessage& proto, ServerMessage* message);
ConvertError from_proto(const v1::CoordinatorMessage& proto, CoordinatorMessage* message);

void to_proto(const ClusterStatus& status, v1::StatusReply* proto);
ConvertError from_proto(const v1::StatusReply& proto, ClusterStatus* status);

}  // namespace fastfd::control_plane
