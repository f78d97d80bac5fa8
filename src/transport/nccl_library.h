#pragma once

/// NCCL's functions, loaded at the first use: a program starts where there is no NCCL.

#include <nccl.h>

#include "fastfd/core/status.h"

namespace fastfd::transport {

struct NcclLibrary {
  decltype(&ncclGetVersion) get_version = nullptr;
  decltype(&ncclGetUniqueId) get_unique_id = nullptr;
  decltype(&ncclCommInitRankConfig) comm_init_rank_config = nullptr;
  decltype(&ncclCommAbort) comm_abort = nullptr;
  decltype(&ncclCommGetAsyncError) comm_get_async_error = nullptr;
  decltype(&ncclGetErrorString) get_error_string = nullptr;
  decltype(&ncclGetLastError) get_last_error = nullptr;
  decltype(&ncclGroupStart) group_start = nullptr;
  decltype(&ncclGroupEnd) group_end = nullptr;
  decltype(&ncclSend) send = nullptr;
  decltype(&ncclRecv) recv = nullptr;
};

/// Loaded once and never unloaded. kUnavailable with cause and remedy. Thread-safe.
const Result<NcclLibrary>& find_nccl();

/// For calls after find_nccl has gone well.
const NcclLibrary& nccl();

/// "ncclRemoteError"-like results as Status: `what` was tried, `last_error` is NCCL's own text.
/// With a remedy for each kind.
Status nccl_status(ncclResult_t result, const char* what, const char* last_error);

}  // namespace fastfd::transport
