#include <algorithm>
#include <cstddef>
#include <type_traits>
#include <utility>

#include "control_plane/convert.h"

namespace fastfd::control_plane {
namespace {

v1::Role to_proto(Role role) { return role == Role::kFfn ? v1::ROLE_FFN : v1::ROLE_ATTENTION; }

v1::DType to_proto(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
      return v1::DTYPE_FLOAT32;
    case DType::kBFloat16:
      return v1::DTYPE_BFLOAT16;
    case DType::kFloat16:
      return v1::DTYPE_FLOAT16;
    case DType::kFloat8E4M3:
      return v1::DTYPE_FLOAT8_E4M3;
  }
  return v1::DTYPE_UNSPECIFIED;
}

v1::Precision to_proto(Precision precision) {
  return precision == Precision::kFloat32 ? v1::PRECISION_FLOAT32 : v1::PRECISION_BFLOAT16;
}

bool from_proto(v1::Role proto, Role* role) {
  *role = proto == v1::ROLE_FFN ? Role::kFfn : Role::kAttention;
  return proto == v1::ROLE_FFN || proto == v1::ROLE_ATTENTION;
}

bool from_proto(v1::DType proto, DType* dtype) {
  switch (proto) {
    case v1::DTYPE_FLOAT32:
      *dtype = DType::kFloat32;
      return true;
    case v1::DTYPE_BFLOAT16:
      *dtype = DType::kBFloat16;
      return true;
    case v1::DTYPE_FLOAT16:
      *dtype = DType::kFloat16;
      return true;
    case v1::DTYPE_FLOAT8_E4M3:
      *dtype = DType::kFloat8E4M3;
      return true;
    default:
      return false;
  }
}

bool from_proto(v1::Precision proto, Precision* precision) {
  *precision = proto == v1::PRECISION_FLOAT32 ? Precision::kFloat32 : Precision::kBFloat16;
  return proto == v1::PRECISION_FLOAT32 || proto == v1::PRECISION_BFLOAT16;
}

void to_proto(const Contract& contract, v1::Contract* proto) {
  proto->set_protocol_version(contract.protocol_version);
  proto->set_model_fingerprint(contract.model_fingerprint);
  proto->set_num_attention_servers(contract.num_attention_servers);
  proto->set_num_ffn_servers(contract.num_ffn_servers);
  proto->set_max_lane_rows(contract.max_lane_rows);
  proto->set_hidden_dim(contract.hidden_dim);
  proto->set_max_routes_per_row(contract.max_routes_per_row);
  proto->set_num_layers(contract.num_layers);
  proto->set_dispatch_dtype(to_proto(contract.dispatch_dtype));
  proto->set_combine_dtype(to_proto(contract.combine_dtype));
  proto->set_precision(to_proto(contract.precision));
  proto->set_num_pages(contract.num_pages);
  proto->set_page_size(contract.page_size);
  proto->set_kv_dtype(to_proto(contract.kv_dtype));
  proto->set_num_slots(contract.num_slots);
  proto->set_max_model_len(contract.max_model_len);
  proto->set_num_experts(contract.num_experts);
  proto->set_expert_replicas(contract.expert_replicas);
}

ConvertError from_proto(const v1::Contract& proto, Contract* contract) {
  contract->protocol_version = proto.protocol_version();
  if (proto.protocol_version() != kProtocolVersion) {
    return {};  // the other fields may mean anything; the handshake refuses by the version
  }
  contract->model_fingerprint = proto.model_fingerprint();
  contract->num_attention_servers = proto.num_attention_servers();
  contract->num_ffn_servers = proto.num_ffn_servers();
  contract->max_lane_rows = proto.max_lane_rows();
  contract->hidden_dim = proto.hidden_dim();
  contract->max_routes_per_row = proto.max_routes_per_row();
  contract->num_layers = proto.num_layers();
  contract->num_pages = proto.num_pages();
  contract->page_size = proto.page_size();
  contract->num_slots = proto.num_slots();
  contract->max_model_len = proto.max_model_len();
  contract->num_experts = proto.num_experts();
  contract->expert_replicas = proto.expert_replicas();
  if (!from_proto(proto.dispatch_dtype(), &contract->dispatch_dtype) ||
      !from_proto(proto.combine_dtype(), &contract->combine_dtype) ||
      !from_proto(proto.kv_dtype(), &contract->kv_dtype) ||
      !from_proto(proto.precision(), &contract->precision)) {
    return "a contract with a number format that this version doesn't know";
  }
  return {};
}

void to_proto(const Registration& registration, v1::Registration* proto) {
  proto->set_role(to_proto(registration.role));
  proto->set_rank(registration.rank);
  proto->set_incarnation(registration.incarnation);
  proto->set_pid(registration.pid);
  proto->set_process_key(registration.process_key);
  proto->set_last_epoch(registration.last_epoch);
  proto->set_data_plane_address(registration.data_plane_address);
  proto->set_num_pages(registration.num_pages);
  to_proto(registration.contract, proto->mutable_contract());
}

ConvertError from_proto(const v1::Registration& proto, Registration* registration) {
  registration->rank = proto.rank();
  registration->incarnation = proto.incarnation();
  registration->pid = proto.pid();
  registration->process_key = proto.process_key();
  registration->last_epoch = proto.last_epoch();
  registration->data_plane_address = proto.data_plane_address();
  registration->num_pages = proto.num_pages();
  if (!from_proto(proto.role(), &registration->role)) {
    return "a registration with an unknown role";
  }
  return from_proto(proto.contract(), &registration->contract);
}

void to_proto(const FfnLoad& load, v1::FfnLoad* proto) {
  proto->set_ffn_rank(load.ffn_rank);
  proto->set_layers_run(load.layers_run);
  proto->set_rows_run(load.rows_run);
  proto->set_compute_us(load.compute_us);
  proto->set_wait_us(load.wait_us);
}

void to_proto(const Heartbeat& heartbeat, v1::Heartbeat* proto) {
  for (const auto& lane : heartbeat.progress) {
    auto* lane_proto = proto->add_lanes();
    lane_proto->set_step(lane.step);
    lane_proto->set_layer(lane.layer);
    lane_proto->set_waiting(lane.waiting);
  }
  if (heartbeat.ffn_load) {
    to_proto(*heartbeat.ffn_load, proto->mutable_ffn_load());
  }
}

ConvertError from_proto(const v1::Heartbeat& proto, Heartbeat* heartbeat) {
  if (proto.lanes_size() > static_cast<int>(kMaxLanes)) {
    return "a heartbeat of " + std::to_string(proto.lanes_size()) + " lanes";
  }
  for (int i = 0; i < proto.lanes_size(); ++i) {
    const auto& lane = proto.lanes(i);
    heartbeat->progress[static_cast<std::size_t>(i)] = {lane.step(), lane.layer(), lane.waiting()};
  }
  if (proto.has_ffn_load()) {
    const auto& load = proto.ffn_load();
    if (load.ffn_rank() >= kMaxServers) {
      return "a load report of FFN server " + std::to_string(load.ffn_rank());
    }
    heartbeat->ffn_load = {load.ffn_rank(), load.layers_run(), load.rows_run(), load.compute_us(),
                           load.wait_us()};
  }
  return {};
}

void to_proto(const Topology& topology, v1::Topology* proto) {
  proto->set_epoch(topology.epoch);
  for (const auto& peer : topology.peers) {
    auto* peer_proto = proto->add_peers();
    peer_proto->set_role(to_proto(peer.role));
    peer_proto->set_rank(peer.rank);
    peer_proto->set_incarnation(peer.incarnation);
    peer_proto->set_data_plane_address(peer.data_plane_address);
  }
  auto* placement = proto->mutable_placement();
  placement->set_num_experts(topology.placement.num_experts);
  placement->set_num_servers(topology.placement.num_servers);
  placement->set_num_replicas(topology.placement.num_replicas);
  placement->set_version(topology.placement.version);
}

ConvertError from_proto(const v1::Topology& proto, Topology* topology) {
  topology->epoch = proto.epoch();
  for (const auto& peer : proto.peers()) {
    Role role{};
    if (!from_proto(peer.role(), &role) || peer.rank() >= kMaxServers) {
      return "a topology with a peer of unknown role or rank";
    }
    topology->peers.push_back({role, peer.rank(), peer.incarnation(), peer.data_plane_address()});
  }
  const auto& placement = proto.placement();
  topology->placement = {placement.num_experts(), placement.num_servers(), placement.num_replicas(),
                         placement.version()};
  // ExpertPlacement::contiguous makes a table of this size.
  constexpr std::uint32_t kMaxExperts = 1U << 16;
  if (placement.num_experts() == 0 || placement.num_experts() > kMaxExperts ||
      placement.num_servers() > kMaxServers || placement.num_replicas() == 0 ||
      placement.num_replicas() > placement.num_servers()) {
    return "a topology with an impossible expert placement";
  }
  return {};
}

/// The oneof member of a message, emptied but with its memory kept if it is set already.
template <typename Proto>
Proto* reused(Proto* member) {
  member->Clear();
  return member;
}

}  // namespace

template <typename Alternative, typename Proto, typename Variant>
static ConvertError decode_alternative(const Proto& proto, Variant* message) {
  return from_proto(proto, &message->template emplace<Alternative>());
}

void to_proto(const ServerMessage& message, v1::ServerMessage* proto) {
  std::visit(
      [proto](const auto& value) {
        using T = std::decay_t<decltype(value)>;
        if constexpr (std::is_same_v<T, Registration>) {
          to_proto(value, reused(proto->mutable_register_()));
        } else if constexpr (std::is_same_v<T, Ready>) {
          proto->mutable_ready()->set_epoch(value.epoch);
        } else if constexpr (std::is_same_v<T, StopAck>) {
          proto->mutable_stop_ack()->set_epoch(value.next_epoch);
        } else if constexpr (std::is_same_v<T, LaneResult>) {
          to_proto(value, reused(proto->mutable_lane_result()));
        } else if constexpr (std::is_same_v<T, Heartbeat>) {
          to_proto(value, reused(proto->mutable_heartbeat()));
        } else {
          static_assert(std::is_same_v<T, Failure>);
          proto->mutable_failure()->set_message(value.message);
        }
      },
      message);
}

void to_proto(const CoordinatorMessage& message, v1::CoordinatorMessage* proto) {
  std::visit(
      [proto](const auto& value) {
        using T = std::decay_t<decltype(value)>;
        if constexpr (std::is_same_v<T, Refused>) {
          proto->mutable_refused()->set_reason(value.reason);
        } else if constexpr (std::is_same_v<T, Topology>) {
          to_proto(value, reused(proto->mutable_topology()));
        } else if constexpr (std::is_same_v<T, Go>) {
          proto->mutable_go()->set_epoch(value.epoch);
        } else if constexpr (std::is_same_v<T, AttentionStepPlan>) {
          to_proto(value, reused(proto->mutable_attention_plan()));
        } else if constexpr (std::is_same_v<T, FfnStepPlan>) {
          to_proto(value, reused(proto->mutable_ffn_plan()));
        } else if constexpr (std::is_same_v<T, Stop>) {
          proto->mutable_stop()->set_next_epoch(value.next_epoch);
          proto->mutable_stop()->set_reason(value.reason);
        } else {
          static_assert(std::is_same_v<T, Shutdown>);
          proto->mutable_shutdown();
        }
      },
      message);
}

ConvertError from_proto(const v1::ServerMessage& proto, ServerMessage* message) {
  switch (proto.kind_case()) {
    case v1::ServerMessage::kRegister:
      return decode_alternative<Registration>(proto.register_(), message);
    case v1::ServerMessage::kReady:
      *message = Ready{proto.ready().epoch()};
      return {};
    case v1::ServerMessage::kStopAck:
      *message = StopAck{proto.stop_ack().epoch()};
      return {};
    case v1::ServerMessage::kLaneResult:
      return decode_alternative<LaneResult>(proto.lane_result(), message);
    case v1::ServerMessage::kHeartbeat:
      return decode_alternative<Heartbeat>(proto.heartbeat(), message);
    case v1::ServerMessage::kFailure:
      *message = Failure{proto.failure().message()};
      return {};
    case v1::ServerMessage::KIND_NOT_SET:
      break;
  }
  return "a message of no kind that this version knows";
}

ConvertError from_proto(const v1::CoordinatorMessage& proto, CoordinatorMessage* message) {
  switch (proto.kind_case()) {
    case v1::CoordinatorMessage::kRefused:
      *message = Refused{proto.refused().reason()};
      return {};
    case v1::CoordinatorMessage::kTopology:
      return decode_alternative<Topology>(proto.topology(), message);
    case v1::CoordinatorMessage::kGo:
      *message = Go{proto.go().epoch()};
      return {};
    case v1::CoordinatorMessage::kAttentionPlan:
      return decode_alternative<AttentionStepPlan>(proto.attention_plan(), message);
    case v1::CoordinatorMessage::kFfnPlan:
      return decode_alternative<FfnStepPlan>(proto.ffn_plan(), message);
    case v1::CoordinatorMessage::kStop:
      *message = Stop{proto.stop().next_epoch(), proto.stop().reason()};
      return {};
    case v1::CoordinatorMessage::kShutdown:
      *message = Shutdown{};
      return {};
    case v1::CoordinatorMessage::KIND_NOT_SET:
      break;
  }
  return "a message of no kind that this version knows";
}

void to_proto(const ClusterStatus& status, v1::StatusReply* proto) {
  proto->set_epoch(status.epoch);
  proto->set_ready(status.ready);
  proto->set_draining(status.draining);
  proto->set_detail(status.detail);
  for (const auto& member : status.members) {
    auto* member_proto = proto->add_members();
    member_proto->set_role(to_proto(member.role));
    member_proto->set_rank(member.rank);
    member_proto->set_incarnation(member.incarnation);
    member_proto->set_pid(member.pid);
    member_proto->set_data_plane_address(member.data_plane_address);
    member_proto->set_state(member.state);
  }
}

ConvertError from_proto(const v1::StatusReply& proto, ClusterStatus* status) {
  status->epoch = proto.epoch();
  status->ready = proto.ready();
  status->draining = proto.draining();
  status->detail = proto.detail();
  for (const auto& member : proto.members()) {
    Role role{};
    if (!from_proto(member.role(), &role)) {
      return "a status with a member of unknown role";
    }
    status->members.push_back({role, member.rank(), member.incarnation(), member.pid(),
                               member.data_plane_address(), member.state()});
  }
  return {};
}

}  // namespace fastfd::control_plane
