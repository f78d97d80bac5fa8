#pragma once

#include <cstddef>
#include <string>

#include "fastfd/core/status.h"

namespace fastfd::transport {

/// Owns a file descriptor. Movable, not copyable.
class UniqueFd {
 public:
  UniqueFd() = default;
  explicit UniqueFd(int fd) : fd_(fd) {}
  UniqueFd(UniqueFd&& other) noexcept : fd_(other.release()) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept {
    if (this != &other) {
      reset(other.release());
    }
    return *this;
  }
  ~UniqueFd() { reset(); }

  int get() const { return fd_; }
  bool is_open() const { return fd_ >= 0; }
  int release() {
    const int fd = fd_;
    fd_ = -1;
    return fd;
  }
  void reset(int fd = -1);

 private:
  int fd_ = -1;
};

/// Owns a range of mapped memory: page-aligned, zero-filled, backed when first touched. The pages
/// live as long as anybody maps them, whatever happens to the process that made them.
class Mapping {
 public:
  Mapping() = default;
  Mapping(Mapping&& other) noexcept;
  Mapping& operator=(Mapping&& other) noexcept;
  ~Mapping();

  std::byte* data() const { return data_; }
  std::size_t num_bytes() const { return num_bytes_; }

  /// Memory of this process alone.
  static Result<Mapping> make_private(std::size_t num_bytes);
  /// Maps a memfd that a peer sent. Refuses one that is not exactly `num_bytes` long or that its
  /// owner could still shrink: touching the missing part would kill this process with SIGBUS.
  static Result<Mapping> map_peer(const UniqueFd& fd, std::size_t num_bytes);

 private:
  friend struct SharedMemory;
  static Result<Mapping> map(int fd, int flags, std::size_t num_bytes);

  std::byte* data_ = nullptr;
  std::size_t num_bytes_ = 0;
};

/// A new memfd of a fixed length, mapped here and ready to be sent to a peer.
struct SharedMemory {
  UniqueFd fd;
  Mapping mapping;

  /// `name` shows in /proc/PID/maps as "memfd:name".
  static Result<SharedMemory> make(const std::string& name, std::size_t num_bytes);
};

}  // namespace fastfd::transport
