#include "model/checkpoint_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <system_error>

#include "fastfd/core/model_files.h"
#include "fastfd/model/model.h"
#include "model/safetensors_header.h"

namespace fastfd::model {
namespace {

constexpr std::uint64_t kLfsBytes = 64;  // tell a Git LFS pointer

std::string errno_text(int error) { return std::generic_category().message(error); }

}  // namespace

CheckpointFile::CheckpointFile(std::filesystem::path path) : path_(std::move(path)) {
  // Without O_NONBLOCK a FIFO would be waited for; it changes nothing for files.
  fd_ = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd_ < 0) {
    const int error = errno;
    throw ModelError(
        fmt::format("{}: can't be opened ({}); check that the file exists and may "
                    "be read",
                    path_.string(), errno_text(error)));
  }
  struct stat status {};
  if (::fstat(fd_, &status) != 0 || !S_ISREG(status.st_mode)) {
    ::close(fd_);
    throw ModelError(path_.string() + ": not a regular file; put the checkpoint's file there");
  }
  num_bytes_ = static_cast<std::uint64_t>(status.st_size);
}

CheckpointFile::~CheckpointFile() { ::close(fd_); }

void CheckpointFile::read_at(std::uint64_t offset, void* out, std::uint64_t num_bytes) const {
  auto* to = static_cast<char*>(out);
  while (num_bytes > 0) {
    const ssize_t got = ::pread(fd_, to, num_bytes, static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) {
      continue;
    }
    if (got <= 0) {
      const std::string why = got == 0 ? "it became shorter" : errno_text(errno);
      throw ModelError(fmt::format("{}: can't be read ({}); check the disk and fetch it again",
                                   path_.string(), why));
    }
    to += got;
    offset += static_cast<std::uint64_t>(got);
    num_bytes -= static_cast<std::uint64_t>(got);
  }
}

std::string CheckpointFile::read_header() const {
  if (num_bytes_ < kLengthBytes) {
    throw ModelError(
        fmt::format("{}: {} bytes are too few for a safetensors file: empty or "
                    "truncated; fetch it again",
                    path_.string(), num_bytes_));
  }
  std::string begin(std::min<std::uint64_t>(num_bytes_, kLfsBytes), '\0');
  read_at(0, begin.data(), begin.size());
  if (is_git_lfs_pointer(begin)) {
    throw ModelError(fmt::format("{} {}", path_.string(), kGitLfsRemedy));
  }
  std::uint64_t header_bytes = 0;
  static_assert(std::endian::native == std::endian::little);
  std::memcpy(&header_bytes, begin.data(), kLengthBytes);
  if (header_bytes > kMostHeaderBytes || header_bytes > num_bytes_ - kLengthBytes) {
    throw ModelError(
        fmt::format("{}: header length {} does not fit the file's {} bytes: "
                    "truncated, or no safetensors file; fetch it again",
                    path_.string(), header_bytes, num_bytes_));
  }
  std::string header(header_bytes, '\0');
  read_at(kLengthBytes, header.data(), header_bytes);
  return header;
}

CheckpointFile::Mapping CheckpointFile::map(std::uint64_t offset, std::uint64_t num_bytes) const {
  // Touching a mapped page beyond the end of the file raises SIGBUS.
  struct stat status {};
  if (::fstat(fd_, &status) != 0 ||
      static_cast<std::uint64_t>(status.st_size) < offset + num_bytes) {
    throw ModelError(path_.string() +
                     ": became shorter while it was read; restore the file and start again");
  }
  static const auto page_bytes = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  const std::uint64_t lead = offset % page_bytes;
  // MAP_POPULATE: one system call instead of a fault every few pages.
  void* base = ::mmap(nullptr, lead + num_bytes, PROT_READ, MAP_PRIVATE | MAP_POPULATE, fd_,
                      static_cast<off_t>(offset - lead));
  if (base == MAP_FAILED) {
    const int error = errno;
    throw ModelError(fmt::format("{}: can't be mapped ({}); check the limits on memory",
                                 path_.string(), errno_text(error)));
  }
  return {base, lead, lead + num_bytes};
}

}  // namespace fastfd::model
