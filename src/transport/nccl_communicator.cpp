#include "transport/nccl_communicator.h"

#include <fmt/format.h>

#include <cstring>
#include <thread>

#include "fastfd/transport/nccl.h"

namespace fastfd::transport {
namespace {

// How long abort() lets a call return by itself. Afterwards ncclCommAbort ends it, which it may
// from another thread.
constexpr std::chrono::seconds kCallGrace{2};

}  // namespace

Status NcclCommunicator::failure(ncclResult_t result, const char* what) const {
  const Status status = nccl_status(
      result, what, handle_.load() == nullptr ? "" : nccl().get_last_error(handle_.load()));
  return {status.code(), fmt::format("{}: {}", name_, status.message())};
}

Status NcclCommunicator::finish(ncclResult_t result, const char* what, const Deadline* deadline) {
  constexpr int kSpins = 1000;
  for (int poll = 0; result == ncclInProgress; ++poll) {
    if (abort_asked_.load(std::memory_order_acquire) ||
        (deadline != nullptr && deadline->is_cancelled())) {
      return {StatusCode::kAborted, name_ + ": the epoch was abandoned"};
    }
    if (deadline != nullptr && deadline->is_over()) {
      return {StatusCode::kDeadlineExceeded,
              fmt::format("{}: {} was not through within {} ms; check that all of them run, are at "
                          "this epoch, and that the network lets NCCL through (NCCL_SOCKET_IFNAME "
                          "names the interface, NCCL_DEBUG=INFO shows how far it came)",
                          name_, what, deadline->timeout().count())};
    }
    if (poll < kSpins) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
    ncclResult_t state = ncclSuccess;
    result = nccl().comm_get_async_error(handle_, &state);
    if (result == ncclSuccess) {
      result = state;
    }
  }
  return result == ncclSuccess ? Status::ok() : failure(result, what);
}

Status NcclCommunicator::join(const NcclId& id, int num_ranks, int rank, const Deadline& deadline) {
  const std::lock_guard lock(mutex_);
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  config.minCTAs = 1;
  config.maxCTAs = kNcclCtas;
  config.cgaClusterSize = 0;  // a part of a GPU may have no room for clusters
  ncclUniqueId unique_id;
  static_assert(sizeof(unique_id) == sizeof(id));
  std::memcpy(&unique_id, id.data(), sizeof(unique_id));
  ncclComm_t handle = nullptr;
  const ncclResult_t result =
      nccl().comm_init_rank_config(&handle, num_ranks, unique_id, rank, &config);
  handle_.store(handle);
  return finish(result, "making the communicator", &deadline);
}

Status NcclCommunicator::exchange(std::span<const NcclTransfer> transfers,
                                  device::CudaStream stream, const Deadline* deadline) {
  const std::lock_guard lock(mutex_);
  const ncclComm_t handle = handle_.load();
  if (handle == nullptr || abort_asked_.load(std::memory_order_acquire)) {
    return {StatusCode::kAborted, name_ + ": the epoch was abandoned"};
  }
  ncclResult_t result = nccl().group_start();
  if (result != ncclSuccess) {
    return failure(result, "ncclGroupStart");
  }
  for (const NcclTransfer& transfer : transfers) {
    if (result == ncclSuccess || result == ncclInProgress) {
      result = transfer.is_send ? nccl().send(transfer.data, transfer.num_bytes, ncclUint8,
                                              transfer.peer, handle, stream)
                                : nccl().recv(transfer.data, transfer.num_bytes, ncclUint8,
                                              transfer.peer, handle, stream);
    }
  }
  const ncclResult_t ended = nccl().group_end();  // also after a failure: it closes the group
  if (result != ncclSuccess && result != ncclInProgress) {
    return failure(result, "enqueuing a message");
  }
  return finish(ended, "enqueuing messages", deadline);
}

Status NcclCommunicator::health() {
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock.owns_lock() || handle_.load() == nullptr) {
    return Status::ok();  // whoever ends it knows why
  }
  ncclResult_t state = ncclSuccess;
  const ncclResult_t result = nccl().comm_get_async_error(handle_, &state);
  if (result != ncclSuccess) {
    return failure(result, "ncclCommGetAsyncError");
  }
  return state == ncclSuccess || state == ncclInProgress ? Status::ok()
                                                         : failure(state, "exchanging messages");
}

void NcclCommunicator::abort() {
  ask_abort();
  const std::unique_lock lock(mutex_, kCallGrace);
  if (const ncclComm_t handle = handle_.exchange(nullptr); handle != nullptr) {
    static_cast<void>(nccl().comm_abort(handle));
  }
}

void abort_communicators(std::span<const std::unique_ptr<NcclCommunicator>> communicators) {
  for (const auto& communicator : communicators) {
    communicator->ask_abort();
  }
  std::vector<std::jthread> threads;
  threads.reserve(communicators.size());
  for (const auto& communicator : communicators) {
    threads.emplace_back([&communicator] { communicator->abort(); });
  }
}

}  // namespace fastfd::transport
