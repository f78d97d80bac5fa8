#include "transport/nccl_library.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <string>

#include "fastfd/core/check.h"
#include "fastfd/transport/nccl.h"

namespace fastfd::transport {
namespace {

constexpr const char* kSoname = "libnccl.so.2";
/// Where the build found it: toolkits put it where the loader does not look.
constexpr const char* kBuildPath = FASTFD_NCCL_LIBRARY;
constexpr int kOldestVersion = NCCL_VERSION(2, 19, 0);

template <typename Function>
bool find(void* library, const char* symbol, Function& function, std::string& missing) {
  function = reinterpret_cast<Function>(::dlsym(library, symbol));
  if (function == nullptr) {
    missing = symbol;
  }
  return function != nullptr;
}

Status check_version(const NcclLibrary& library) {
  int version = 0;
  const ncclResult_t result = library.get_version(&version);
  if (result != ncclSuccess) {
    return nccl_status(result, "ncclGetVersion", "");
  }
  if (version < kOldestVersion) {
    return {StatusCode::kUnavailable,
            fmt::format("NCCL is of version {}.{}.{}; transport nccl needs 2.19 or newer, install "
                        "libnccl2",
                        version / 10000, version / 100 % 100, version % 100)};
  }
  return Status::ok();
}

Result<NcclLibrary> load() {
  void* handle = ::dlopen(kSoname, RTLD_NOW | RTLD_LOCAL);
  std::string problem;
  if (handle == nullptr) {
    problem = ::dlerror();
    handle = ::dlopen(kBuildPath, RTLD_NOW | RTLD_LOCAL);
  }
  if (handle == nullptr) {
    return Status(StatusCode::kUnavailable,
                  fmt::format("transport nccl needs NCCL, which can't be loaded ({}); install "
                              "libnccl2, or add the folder of {} to LD_LIBRARY_PATH",
                              problem, kSoname));
  }
  NcclLibrary library;
  std::string missing;
  const bool complete =
      find(handle, "ncclGetVersion", library.get_version, missing) &&
      find(handle, "ncclGetUniqueId", library.get_unique_id, missing) &&
      find(handle, "ncclCommInitRankConfig", library.comm_init_rank_config, missing) &&
      find(handle, "ncclCommAbort", library.comm_abort, missing) &&
      find(handle, "ncclCommGetAsyncError", library.comm_get_async_error, missing) &&
      find(handle, "ncclGetErrorString", library.get_error_string, missing) &&
      find(handle, "ncclGetLastError", library.get_last_error, missing) &&
      find(handle, "ncclGroupStart", library.group_start, missing) &&
      find(handle, "ncclGroupEnd", library.group_end, missing) &&
      find(handle, "ncclSend", library.send, missing) &&
      find(handle, "ncclRecv", library.recv, missing);
  if (!complete) {
    return Status(StatusCode::kUnavailable,
                  fmt::format("{} has no {}; transport nccl needs NCCL 2.19 or newer, install "
                              "libnccl2",
                              kSoname, missing));
  }
  if (const Status status = check_version(library); !status) {
    return status;
  }
  return library;
}

const char* name_of(ncclResult_t result) {
  switch (result) {
    case ncclUnhandledCudaError:
      return "a CUDA call failed";
    case ncclSystemError:
      return "a system call failed";
    case ncclInternalError:
      return "NCCL failed";
    case ncclInvalidArgument:
    case ncclInvalidUsage:
      return "NCCL refused the call";
    case ncclRemoteError:
      return "a peer or the way to it was lost";
    default:
      return "unknown error";
  }
}

const char* remedy_of(ncclResult_t result) {
  switch (result) {
    case ncclUnhandledCudaError:
      return "check the GPU and its free memory";
    case ncclSystemError:
    case ncclRemoteError:
      return "check that the peers run, and the network between them (NCCL_SOCKET_IFNAME names the "
             "interface)";
    case ncclInvalidUsage:
      return "give every server a GPU of its own, or use transport cuda_ipc for servers that share "
             "one";
    default:
      return "NCCL_DEBUG=WARN in the environment says more";
  }
}

}  // namespace

const Result<NcclLibrary>& find_nccl() {
  static const Result<NcclLibrary> library = load();
  return library;
}

const NcclLibrary& nccl() {
  const auto& library = find_nccl();
  check(library.is_ok(), "NCCL is used before it was found");
  return *library;
}

Status nccl_status(ncclResult_t result, const char* what, const char* last_error) {
  if (result == ncclSuccess) {
    return Status::ok();
  }
  const std::string detail =
      last_error == nullptr || *last_error == '\0' ? "" : fmt::format(" ({})", last_error);
  return {StatusCode::kUnavailable,
          fmt::format("{}: {}{}; {}", what, name_of(result), detail, remedy_of(result))};
}

Status nccl_availability() { return find_nccl().status(); }

}  // namespace fastfd::transport
