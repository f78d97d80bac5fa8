#include <fmt/format.h>
#include <sys/random.h>
#include <unistd.h>

#include <stdexcept>
#include <system_error>
#include <utility>

#include "fastfd/core/check.h"
#include "fastfd/transport/shm.h"
#include "fastfd/transport/window_shape.h"
#include "transport/shm_rendezvous.h"
#include "transport/unix_socket.h"
#include "transport/window_ports.h"

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

}  // namespace

struct ShmEndpoint::Impl {
  LocalServer self;
  WaitPolicy wait_policy;
  std::string address;
  UniqueFd listener;
  std::vector<ParkedDialler> parked;
};

ShmEndpoint::ShmEndpoint(const ShmEndpointOptions& options) : impl_(std::make_unique<Impl>()) {
  require(validate(options.shape));
  if (options.role == Role::kCoordinator || options.rank >= kMaxServers) {
    throw std::invalid_argument(
        fmt::format("shm transport: role {} rank {} has no data plane; ranks are 0 to {}",
                    to_string(options.role), options.rank, kMaxServers - 1));
  }
  impl_->self = {options.role, options.rank, options.incarnation, options.shape};
  impl_->wait_policy = options.wait_policy;
  impl_->address =
      options.address.empty() ? make_abstract_address(options.role, options.rank) : options.address;
  require(check_unix_address(impl_->address));
  Result<UniqueFd> listener = listen_unix(impl_->address);
  if (!listener) {
    throw std::system_error(
        std::make_error_code(std::errc::address_in_use),
        fmt::format("{} cannot listen at {}; use another data-plane address",
                    server_name(options.role, options.rank), listener.status().message()));
  }
  impl_->listener = std::move(*listener);
}

ShmEndpoint::~ShmEndpoint() {
  constexpr std::size_t kSchemeLength = 5;  // "unix:"
  if (impl_->listener.is_open() && impl_->address[kSchemeLength] == '/') {
    ::unlink(impl_->address.c_str() + kSchemeLength);
  }
}

const std::string& ShmEndpoint::address() const { return impl_->address; }

Result<std::shared_ptr<AttentionPort>> ShmEndpoint::connect_attention(
    Epoch epoch, std::span<const PeerAddress> ffn_servers, const ConnectOptions& options) {
  check(impl_->self.role == Role::kAttention, "only attention servers dial FFN servers");
  if (Status status = check_peers(ffn_servers, /*needs_addresses=*/true); !status) {
    return status;
  }
  Result<EpochMemory> memory = dial_ffn_servers(impl_->self, epoch, ffn_servers, Deadline(options));
  if (!memory) {
    return memory.status();
  }
  return std::shared_ptr<AttentionPort>(std::make_shared<WindowAttentionPort>(
      make_port_parts(impl_->self, impl_->wait_policy, epoch, std::move(*memory))));
}

Result<std::shared_ptr<FfnPort>> ShmEndpoint::connect_ffn(
    Epoch epoch, std::span<const PeerAddress> attention_servers, const ConnectOptions& options) {
  check(impl_->self.role == Role::kFfn, "only FFN servers await attention servers");
  if (Status status = check_peers(attention_servers, /*needs_addresses=*/false); !status) {
    return status;
  }
  Result<EpochMemory> memory =
      await_attention_servers(impl_->self, impl_->address, impl_->listener, epoch,
                              attention_servers, Deadline(options), impl_->parked);
  if (!memory) {
    return memory.status();
  }
  return std::shared_ptr<FfnPort>(std::make_shared<WindowFfnPort>(
      make_port_parts(impl_->self, impl_->wait_policy, epoch, std::move(*memory))));
}

}  // namespace fastfd::transport
