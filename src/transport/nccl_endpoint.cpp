#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <stdexcept>
#include <system_error>
#include <thread>
#include <utility>

#include "fastfd/core/logging.h"
#include "fastfd/transport/nccl.h"
#include "transport/nccl_port.h"
#include "transport/window_layouts.h"

namespace fastfd::transport {
namespace {

/// What each pair exchanges while an epoch is connected.
constexpr std::size_t kGreetingBytes = 128;

void check_options(const NcclEndpointOptions& options) {
  const bool is_attention = options.role == Role::kAttention;
  const std::uint32_t num_servers =
      is_attention ? options.num_attention_servers : options.num_ffn_servers;
  const auto fits = [](std::uint32_t count) { return count > 0 && count <= kMaxServers; };
  if ((!is_attention && options.role != Role::kFfn) || options.rank >= num_servers ||
      !fits(options.num_attention_servers) || !fits(options.num_ffn_servers) ||
      options.num_lanes == 0 || options.num_lanes > kMaxLanes) {
    throw std::invalid_argument(
        fmt::format("nccl endpoint: {} server {} of {} attention and {} FFN servers with {} lanes",
                    to_string(options.role), options.rank, options.num_attention_servers,
                    options.num_ffn_servers, options.num_lanes));
  }
}

}  // namespace

struct NcclEndpoint::Impl {
  Impl(const device::CudaDevice& gpu, const NcclEndpointOptions& given)
      : device(gpu),
        options(given),
        self{given.role, given.rank, given.incarnation, given.shape},
        stream(gpu),
        abort_mark(std::make_shared<AbortMark>(gpu)),
        greetings(gpu, 2 * kMaxServers * kGreetingBytes) {
    const bool is_attention = options.role == Role::kAttention;
    const std::size_t dispatch_bytes = dispatch_layout(options.shape).bytes();
    const std::size_t combine_bytes = combine_layout(options.shape).bytes();
    const std::uint32_t num_peers =
        is_attention ? options.num_ffn_servers : options.num_attention_servers;
    memory = std::make_shared<Memory>();
    for (ServerRank rank = 0; rank < num_peers; ++rank) {
      memory->send.emplace_back(gpu, is_attention ? dispatch_bytes : combine_bytes);
      memory->receive.emplace_back(gpu, is_attention ? combine_bytes : dispatch_bytes);
    }
  }

  struct Memory {
    std::vector<device::DeviceBuffer> send, receive;  // by the peer's rank
  };

  Role peer_role() const {
    return options.role == Role::kAttention ? Role::kFfn : Role::kAttention;
  }

  Status clear_windows() const;
  Result<std::vector<NcclId>> exchange_ids(Epoch epoch, std::span<const NcclMember> members,
                                           const NcclRanks& ranks, const Deadline& deadline);
  Status join(NcclLanes& lanes, const std::vector<NcclId>& ids, const NcclRanks& ranks,
              const Deadline& deadline) const;
  Status greet(NcclCommunicator& communicator, const NcclRanks& ranks, bool is_send,
               const Deadline& deadline) const;
  DeviceWindows windows_of(const NcclRanks& ranks) const;

  device::CudaDevice device;
  NcclEndpointOptions options;
  LocalServer self;
  TcpListener listener;
  std::vector<NcclCall> waiting;  // for a later epoch than this server is at
  device::DeviceStream stream;
  std::shared_ptr<const AbortMark> abort_mark;
  device::DeviceBuffer greetings;  // [send, receive][kMaxServers]
  std::shared_ptr<Memory> memory;
};

// Flags carry the epoch, so this only makes a window that nobody wrote look like one.
Status NcclEndpoint::Impl::clear_windows() const {
  Status status;
  for (const auto* buffers : {&memory->send, &memory->receive}) {
    for (const auto& buffer : *buffers) {
      if (status) {
        status = device::fill_async(buffer.data(), 0, buffer.num_bytes(), stream.handle());
      }
    }
  }
  if (status) {
    status = device::fill_async(greetings.data(), 0, greetings.num_bytes(), stream.handle());
  }
  return status ? stream.synchronize() : status;
}

Result<std::vector<NcclId>> NcclEndpoint::Impl::exchange_ids(Epoch epoch,
                                                             std::span<const NcclMember> members,
                                                             const NcclRanks& ranks,
                                                             const Deadline& deadline) {
  const std::uint32_t num_ids = 2 * options.num_lanes;
  if (ranks.rank_of(options.role, options.rank) != 0) {
    const ServerRank maker_rank = ranks.servers(Role::kAttention).front();
    const auto maker = std::find_if(members.begin(), members.end(), [&](const NcclMember& member) {
      return member.role == Role::kAttention && member.rank == maker_rank;
    });
    return fetch_ids(self, epoch, *maker, num_ids, deadline);
  }
  std::vector<NcclId> ids(num_ids);
  for (NcclId& id : ids) {
    ncclUniqueId unique_id;
    if (const ncclResult_t result = nccl().get_unique_id(&unique_id); result != ncclSuccess) {
      return nccl_status(result, "making NCCL's ids", nccl().get_last_error(nullptr));
    }
    std::memcpy(id.data(), &unique_id, sizeof(unique_id));
  }
  const Status status = hand_out_ids(self, listener, epoch, members, ids, deadline, waiting);
  return status ? Result<std::vector<NcclId>>(std::move(ids)) : status;
}

// One after the other, in the same order everywhere: NCCL gets ready on the device in between.
Status NcclEndpoint::Impl::join(NcclLanes& lanes, const std::vector<NcclId>& ids,
                                const NcclRanks& ranks, const Deadline& deadline) const {
  const int rank = ranks.rank_of(options.role, options.rank);
  const std::string peers = describe_servers(peer_role(), ranks.servers(peer_role()));
  Status status;
  for (LaneId lane = 0; status && lane < options.num_lanes; ++lane) {
    for (const bool is_dispatch : {true, false}) {
      const bool is_send = is_dispatch == (options.role == Role::kAttention);
      auto& communicators = is_dispatch ? lanes.dispatch : lanes.combine;
      auto& communicator =
          *communicators.emplace_back(std::make_unique<NcclCommunicator>(fmt::format(
              "{} (rank {} of {}), {} of lane {} {} {}", server_name(options.role, options.rank),
              rank, ranks.num_ranks(), is_dispatch ? "dispatches" : "combines", lane,
              is_send ? "to" : "from", peers)));
      if (status) {
        status = communicator.join(ids[2 * lane + (is_dispatch ? 0 : 1)], ranks.num_ranks(), rank,
                                   deadline);
      }
      if (status) {
        status = greet(communicator, ranks, is_send, deadline);
      }
    }
  }
  return status;
}

// NCCL connects a pair when it first exchanges something: allocations, waiting for the peer and
// all.
Status NcclEndpoint::Impl::greet(NcclCommunicator& communicator, const NcclRanks& ranks,
                                 bool is_send, const Deadline& deadline) const {
  std::vector<NcclTransfer> transfers;
  std::byte* at = greetings.data() + (is_send ? 0 : kMaxServers * kGreetingBytes);
  for (const ServerRank peer : ranks.servers(peer_role())) {
    transfers.push_back({is_send, at, kGreetingBytes, ranks.rank_of(peer_role(), peer)});
    at += kGreetingBytes;
  }
  Status status = communicator.exchange(transfers, stream.handle(), &deadline);
  while (status) {
    const auto idle = stream.is_idle();
    if (!idle || *idle) {
      return idle.status();
    }
    if (deadline.is_cancelled()) {
      return {StatusCode::kAborted, "connecting through NCCL was cancelled"};
    }
    if (deadline.is_over()) {
      return {StatusCode::kDeadlineExceeded,
              fmt::format("{} exchanged no message with {} within {} ms; check the network between "
                          "them (NCCL_SOCKET_IFNAME names the interface)",
                          server_name(options.role, options.rank),
                          describe_servers(peer_role(), ranks.servers(peer_role())),
                          deadline.timeout().count())};
    }
    std::this_thread::sleep_for(std::chrono::microseconds(100));
    status = communicator.health();
  }
  return status;
}

DeviceWindows NcclEndpoint::Impl::windows_of(const NcclRanks& ranks) const {
  DeviceWindows windows;
  for (ServerRank rank = 0; rank < memory->send.size(); ++rank) {
    const bool is_there = ranks.contains(peer_role(), rank);
    windows.send.push_back(is_there ? memory->send[rank].data() : nullptr);
    windows.receive.push_back(is_there ? memory->receive[rank].data() : nullptr);
  }
  windows.memory = memory;
  return windows;
}

NcclEndpoint::NcclEndpoint(const device::CudaDevice& device, const NcclEndpointOptions& options) {
  check_options(options);
  if (const Status status = nccl_availability(); !status) {
    throw device::DeviceError(status.message());
  }
  impl_ = std::make_unique<Impl>(device, options);
  auto listener = listen_tcp(options.address);
  if (!listener) {
    if (listener.status().code() == StatusCode::kInvalidArgument) {
      throw std::invalid_argument(listener.status().message());
    }
    throw std::system_error(EADDRNOTAVAIL, std::generic_category(), listener.status().message());
  }
  impl_->listener = std::move(*listener);
}

NcclEndpoint::~NcclEndpoint() = default;

const std::string& NcclEndpoint::address() const { return impl_->listener.address; }

Result<std::shared_ptr<DevicePort>> NcclEndpoint::connect(Epoch epoch,
                                                          std::span<const NcclMember> members,
                                                          const ConnectOptions& options) {
  const Deadline deadline(options);
  const auto start = std::chrono::steady_clock::now();
  auto ranks = NcclRanks::make(members, impl_->options.num_attention_servers,
                               impl_->options.num_ffn_servers);
  if (!ranks) {
    return ranks.status();
  }
  const int rank = ranks->rank_of(impl_->options.role, impl_->options.rank);
  if (rank < 0) {
    return Status(StatusCode::kInvalidArgument,
                  fmt::format("{} is not in epoch {}",
                              server_name(impl_->options.role, impl_->options.rank), epoch));
  }
  Status status = impl_->device.make_current();
  if (status) {
    status = impl_->clear_windows();
  }
  if (!status) {
    return status;
  }
  const auto ids = impl_->exchange_ids(epoch, members, *ranks, deadline);
  if (!ids) {
    return ids.status();
  }
  NcclLanes lanes;
  if (status = impl_->join(lanes, *ids, *ranks, deadline); !status) {
    lanes.abort();
    return status;
  }
  spdlog::info("epoch {}: {} communicators of {} ranks, this one {}, in {:.2f} s", epoch,
               2 * impl_->options.num_lanes, ranks->num_ranks(), rank,
               std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  return std::shared_ptr<DevicePort>(std::make_shared<NcclPort>(
      NcclPortParts{impl_->options.shape, impl_->options.role, *ranks, impl_->windows_of(*ranks),
                    std::move(lanes), impl_->abort_mark}));
}

}  // namespace fastfd::transport
