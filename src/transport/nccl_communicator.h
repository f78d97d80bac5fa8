#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "fastfd/core/status.h"
#include "fastfd/device/cuda_stream.h"
#include "transport/nccl_library.h"
#include "transport/nccl_rendezvous.h"

namespace fastfd::transport {

/// A send to a rank, or a receive from it.
struct NcclTransfer {
  bool is_send = false;
  std::byte* data = nullptr;  ///< device memory
  std::size_t num_bytes = 0;
  int peer = 0;
};

/// One communicator, made without blocking in NCCL, so that whoever waits can give up. One thread
/// uses it; ask_abort() and abort() are for any.
class NcclCommunicator {
 public:
  /// `name` for messages: whose, of what, with whom.
  explicit NcclCommunicator(std::string name) : name_(std::move(name)) {}
  ~NcclCommunicator() { abort(); }
  NcclCommunicator(const NcclCommunicator&) = delete;
  NcclCommunicator& operator=(const NcclCommunicator&) = delete;

  /// Joins the others of `id` on the current device. kDeadlineExceeded if not all came.
  Status join(const NcclId& id, int num_ranks, int rank, const Deadline& deadline);

  /// Enqueues all transfers as one group; returns when they are in the stream. Transfers of one
  /// pair meet in the order of both sides' lists, with equal sizes. Waits while NCCL's queues are
  /// full or, the first time two ranks meet, for the peer: to the deadline, or as long as
  /// ask_abort() allows.
  Status exchange(std::span<const NcclTransfer> transfers, device::CudaStream stream,
                  const Deadline* deadline = nullptr);

  /// What NCCL has found wrong by itself. Never blocks.
  Status health();

  /// Makes what is in progress on the host return. Never blocks.
  void ask_abort() { abort_asked_.store(true, std::memory_order_release); }
  /// Ends what waits on the GPU and frees everything; blocks until the GPU has left NCCL's kernels,
  /// so communicators whose kernels queue behind each other's are aborted side by side
  /// (abort_communicators). Idempotent.
  void abort();

 private:
  /// Until NCCL is through with the last call; kAborted after ask_abort().
  Status finish(ncclResult_t result, const char* what, const Deadline* deadline);
  Status failure(ncclResult_t result, const char* what) const;

  std::string name_;
  std::timed_mutex mutex_;  // NCCL's calls on the handle
  std::atomic<ncclComm_t> handle_{nullptr};
  std::atomic<bool> abort_asked_{false};
};

/// All at once; returns when all are gone.
void abort_communicators(std::span<const std::unique_ptr<NcclCommunicator>> communicators);

}  // namespace fastfd::transport
