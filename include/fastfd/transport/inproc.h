#pragma once

#include <cstdint>
#include <memory>

#include "fastfd/transport/port.h"

namespace fastfd::transport {

/// `inproc`: every port of a cluster whose servers are threads of one process. The windows are
/// private memory; layouts, flags, doorbells and waiting are those of `shm`.
class InprocFabric {
 public:
  /// Ports start in `epoch`, ready to use. Throws std::invalid_argument for a shape or a number of
  /// servers that can't be, std::bad_alloc without memory.
  InprocFabric(const WindowShape& shape, std::uint32_t num_attention, std::uint32_t num_ffn,
               WaitPolicy wait_policy, Epoch epoch = 1);
  ~InprocFabric();
  InprocFabric(const InprocFabric&) = delete;
  InprocFabric& operator=(const InprocFabric&) = delete;

  /// The one port of that rank: the same object on every call. It keeps the windows alive, so it
  /// may outlive the fabric. Throws std::out_of_range for a rank that is not there.
  std::shared_ptr<AttentionPort> attention_port(ServerRank rank) const;
  std::shared_ptr<FfnPort> ffn_port(ServerRank rank) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace fastfd::transport
