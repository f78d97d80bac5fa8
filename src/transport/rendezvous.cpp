#include "transport/rendezvous.h"

#include <fmt/format.h>
#include <sys/random.h>
#include <unistd.h>

#include <array>
#include <stdexcept>
#include <system_error>
#include <utility>

#include "fastfd/core/check.h"
#include "fastfd/transport/window_shape.h"

namespace fastfd::transport {
namespace {

/// Unique over processes, restarts and clusters of one host.
std::string make_abstract_address(Role role, ServerRank rank) {
  std::uint64_t nonce = 0;
  check(::getrandom(&nonce, sizeof(nonce), 0) == sizeof(nonce), "no random bytes");
  return fmt::format("unix:@fastfd-{}-{}-{}-{:016x}", to_string(role), rank, ::getpid(), nonce);
}

void require(const Status& status) {
  if (!status) {
    throw std::invalid_argument(status.message());
  }
}

/// Ranks in range and not twice, addresses of the right form.
Status check_peers(std::span<const PeerAddress> peers, bool needs_addresses) {
  if (peers.empty()) {
    return Status(StatusCode::kInvalidArgument, "an epoch needs at least one peer to connect to");
  }
  std::array<bool, kMaxServers> seen{};
  for (const PeerAddress& peer : peers) {
    if (peer.rank >= kMaxServers || std::exchange(seen[peer.rank], true)) {
      return Status(
          StatusCode::kInvalidArgument,
          fmt::format("peer rank {} appears twice or is above {}", peer.rank, kMaxServers - 1));
    }
    if (needs_addresses) {
      if (Status status = check_unix_address(peer.address); !status) {
        return status;
      }
    }
  }
  return Status::ok();
}

}  // namespace

Rendezvous::Rendezvous(const EndpointOptions& options, WindowKind windows, std::string place)
    : self_{options.role,  options.rank, options.incarnation,
            options.shape, windows,      std::move(place)} {
  require(validate(options.shape));
  if (options.role == Role::kCoordinator || options.rank >= kMaxServers) {
    throw std::invalid_argument(fmt::format(
        "{} transport: role {} rank {} has no data plane; ranks are 0 to {}",
        transport_name(windows), to_string(options.role), options.rank, kMaxServers - 1));
  }
  address_ =
      options.address.empty() ? make_abstract_address(options.role, options.rank) : options.address;
  require(check_unix_address(address_));
  Result<UniqueFd> listener = listen_unix(address_);
  if (!listener) {
    throw std::system_error(
        std::make_error_code(std::errc::address_in_use),
        fmt::format("{} cannot listen at {}; use another data-plane address",
                    server_name(options.role, options.rank), listener.status().message()));
  }
  listener_ = std::move(*listener);
}

Rendezvous::~Rendezvous() {
  constexpr std::size_t kSchemeLength = 5;  // "unix:"
  if (listener_.is_open() && address_[kSchemeLength] == '/') {
    ::unlink(address_.c_str() + kSchemeLength);
  }
}

Result<EpochMemory> Rendezvous::exchange(Epoch epoch, std::span<const PeerAddress> peers,
                                         const ConnectOptions& options, const Exchange& exchange) {
  const bool dials = self_.role == Role::kAttention;
  if (Status status = check_peers(peers, /*needs_addresses=*/dials); !status) {
    return status;
  }
  const Deadline deadline(options);
  Result<EpochMemory> memory = EpochMemory::make(self_, epoch, peers, exchange, deadline);
  if (memory) {
    memory = dials ? dial_ffn_servers(self_, epoch, peers, deadline, std::move(*memory))
                   : await_attention_servers(self_, address_, listener_, epoch, peers, deadline,
                                             parked_, std::move(*memory));
  }
  if (memory) {
    memory->close_descriptors();
  }
  return memory;
}

}  // namespace fastfd::transport
