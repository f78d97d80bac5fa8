#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>

namespace fastfd::model {

/// An open file that can map ranges of itself. Const functions may be called from any thread;
/// all throw ModelError that names the file.
class CheckpointFile {
 public:
  explicit CheckpointFile(std::filesystem::path path);
  ~CheckpointFile();
  CheckpointFile(const CheckpointFile&) = delete;
  CheckpointFile& operator=(const CheckpointFile&) = delete;

  std::uint64_t num_bytes() const { return num_bytes_; }

  /// Without mapping.
  void read_at(std::uint64_t offset, void* out, std::uint64_t num_bytes) const;

  /// The JSON header, its length checked against the file's.
  std::string read_header() const;

  /// Calls body(bytes) with [offset, offset + num_bytes) mapped, and unmaps.
  template <typename Body>
  void with_mapped(std::uint64_t offset, std::uint64_t num_bytes, const Body& body) const {
    if (num_bytes != 0) {
      const Mapping mapping = map(offset, num_bytes);
      body(mapping.bytes());
    }
  }

 private:
  class Mapping {
   public:
    Mapping(void* base, std::uint64_t lead, std::uint64_t num_bytes)
        : base_(base), lead_(lead), num_bytes_(num_bytes) {}
    ~Mapping() { ::munmap(base_, num_bytes_); }
    Mapping(const Mapping&) = delete;
    Mapping& operator=(const Mapping&) = delete;
    const std::byte* bytes() const { return static_cast<const std::byte*>(base_) + lead_; }

   private:
    void* base_;
    std::uint64_t lead_;       // the range begins in the middle of a page
    std::uint64_t num_bytes_;  // lead included
  };

  Mapping map(std::uint64_t offset, std::uint64_t num_bytes) const;

  std::filesystem::path path_;
  int fd_ = -1;
  std::uint64_t num_bytes_ = 0;
};

}  // namespace fastfd::model
