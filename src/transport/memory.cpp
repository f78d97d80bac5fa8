#include "transport/memory.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>
#include <utility>

namespace fastfd::transport {
namespace {

std::string errno_text() { return std::generic_category().message(errno); }

}  // namespace

void UniqueFd::reset(int fd) {
  if (fd_ >= 0) {
    ::close(fd_);
  }
  fd_ = fd;
}

Mapping::Mapping(Mapping&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), num_bytes_(std::exchange(other.num_bytes_, 0)) {}

Mapping& Mapping::operator=(Mapping&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(num_bytes_, other.num_bytes_);
  return *this;
}

Mapping::~Mapping() {
  if (data_ != nullptr) {
    ::munmap(data_, num_bytes_);
  }
}

Result<Mapping> Mapping::map(int fd, int flags, std::size_t num_bytes) {
  void* address = ::mmap(nullptr, num_bytes, PROT_READ | PROT_WRITE, flags, fd, 0);
  if (address == MAP_FAILED) {
    return Status(StatusCode::kResourceExhausted,
                  fmt::format("cannot map a window of {} bytes: {}; lower max_batched_tokens or "
                              "raise the memory limit of the process",
                              num_bytes, errno_text()));
  }
  Mapping mapping;
  mapping.data_ = static_cast<std::byte*>(address);
  mapping.num_bytes_ = num_bytes;
  return mapping;
}

Result<Mapping> Mapping::make_private(std::size_t num_bytes) {
  return map(-1, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, num_bytes);
}

Result<Mapping> Mapping::map_peer(const UniqueFd& fd, std::size_t num_bytes) {
  struct stat info {};
  if (::fstat(fd.get(), &info) != 0) {
    return Status(StatusCode::kInvalidArgument,
                  fmt::format("peer sent an unusable window: {}", errno_text()));
  }
  const int seals = ::fcntl(fd.get(), F_GET_SEALS);
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0) {
    return Status(StatusCode::kInvalidArgument,
                  "peer sent a window that is not a memfd sealed against shrinking; run the same "
                  "fastfd build on all servers");
  }
  if (static_cast<std::size_t>(info.st_size) != num_bytes) {
    return Status(StatusCode::kInvalidArgument,
                  fmt::format("peer sent a window of {} bytes where {} are expected; run the same "
                              "fastfd build on all servers",
                              info.st_size, num_bytes));
  }
  return map(fd.get(), MAP_SHARED, num_bytes);
}

Result<SharedMemory> SharedMemory::make(const std::string& name, std::size_t num_bytes) {
  SharedMemory memory;
  memory.fd = UniqueFd(::memfd_create(name.c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!memory.fd.is_open() || ::ftruncate(memory.fd.get(), static_cast<off_t>(num_bytes)) != 0 ||
      ::fcntl(memory.fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    return Status(
        StatusCode::kResourceExhausted,
        fmt::format("cannot make shared memory of {} bytes: {}", num_bytes, errno_text()));
  }
  Result<Mapping> mapping = Mapping::map(memory.fd.get(), MAP_SHARED, num_bytes);
  if (!mapping) {
    return mapping.status();
  }
  memory.mapping = std::move(*mapping);
  return memory;
}

}  // namespace fastfd::transport
