#include "fastfd/transport/inproc.h"

#include <fmt/format.h>

#include <new>
#include <stdexcept>
#include <utility>
#include <vector>

#include "fastfd/transport/window_shape.h"
#include "transport/memory.h"
#include "transport/window_layouts.h"
#include "transport/window_ports.h"

namespace fastfd::transport {
namespace {

/// All windows and doorbells of the cluster, in one mapping.
class FabricMemory {
 public:
  FabricMemory(const WindowShape& shape, std::uint32_t num_attention, std::uint32_t num_ffn)
      : bytes_(window_bytes(shape, num_attention, num_ffn)), num_attention_(num_attention) {
    Result<Mapping> mapping = Mapping::make_private(bytes_.cluster);
    if (!mapping) {
      throw std::bad_alloc();
    }
    mapping_ = std::move(*mapping);
  }

  // Servers one after the other, attention first; each server's doorbell, then its windows.
  std::byte* attention_server(ServerRank rank) const {
    return mapping_.data() + rank * bytes_.per_attention_server;
  }
  std::byte* ffn_server(ServerRank rank) const {
    return mapping_.data() + num_attention_ * bytes_.per_attention_server +
           rank * bytes_.per_ffn_server;
  }

  Doorbell attention_doorbell(ServerRank rank) const { return doorbell_at(attention_server(rank)); }
  Doorbell ffn_doorbell(ServerRank rank) const { return doorbell_at(ffn_server(rank)); }
  std::byte* dispatch_window(ServerRank attention, ServerRank ffn) const {
    return ffn_server(ffn) + doorbell_bytes() + attention * bytes_.dispatch_window;
  }
  std::byte* combine_window(ServerRank attention, ServerRank ffn) const {
    return attention_server(attention) + doorbell_bytes() + ffn * bytes_.combine_window;
  }

 private:
  static Doorbell doorbell_at(std::byte* address) {
    return Doorbell(reinterpret_cast<DoorbellPage*>(address));
  }

  WindowBytes bytes_;
  std::uint32_t num_attention_;
  Mapping mapping_;
};

void check_count(const char* role, std::uint32_t count) {
  if (count < 1 || count > kMaxServers) {
    throw std::invalid_argument(fmt::format("inproc transport: {} {} servers; 1 to {} are possible",
                                            count, role, kMaxServers));
  }
}

}  // namespace

struct InprocFabric::Impl {
  std::vector<std::shared_ptr<AttentionPort>> attention;
  std::vector<std::shared_ptr<FfnPort>> ffn;
};

InprocFabric::InprocFabric(const WindowShape& shape, std::uint32_t num_attention,
                           std::uint32_t num_ffn, WaitPolicy wait_policy, Epoch epoch)
    : impl_(std::make_unique<Impl>()) {
  if (const Status status = validate(shape); !status) {
    throw std::invalid_argument(status.message());
  }
  check_count("attention", num_attention);
  check_count("FFN", num_ffn);
  const auto memory = std::make_shared<const FabricMemory>(shape, num_attention, num_ffn);
  for (ServerRank a = 0; a < num_attention; ++a) {
    PortParts parts{shape, wait_policy, epoch, memory->attention_doorbell(a), {}, memory};
    for (ServerRank f = 0; f < num_ffn; ++f) {
      parts.pairs.push_back(
          {memory->dispatch_window(a, f), memory->combine_window(a, f), memory->ffn_doorbell(f)});
    }
    impl_->attention.push_back(std::make_shared<WindowAttentionPort>(std::move(parts)));
  }
  for (ServerRank f = 0; f < num_ffn; ++f) {
    PortParts parts{shape, wait_policy, epoch, memory->ffn_doorbell(f), {}, memory};
    for (ServerRank a = 0; a < num_attention; ++a) {
      parts.pairs.push_back({memory->dispatch_window(a, f), memory->combine_window(a, f),
                             memory->attention_doorbell(a)});
    }
    impl_->ffn.push_back(std::make_shared<WindowFfnPort>(std::move(parts)));
  }
}

InprocFabric::~InprocFabric() = default;

std::shared_ptr<AttentionPort> InprocFabric::attention_port(ServerRank rank) const {
  return impl_->attention.at(rank);
}

std::shared_ptr<FfnPort> InprocFabric::ffn_port(ServerRank rank) const {
  return impl_->ffn.at(rank);
}

}  // namespace fastfd::transport
