#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>
#include <utility>

#include "fastfd/device/cpu.h"

namespace fastfd::device {

const char* to_string(Isa isa) {
  switch (isa) {
    case Isa::kScalar:
      return "scalar";
    case Isa::kAvx2:
      return "avx2";
    case Isa::kAvx512:
      return "avx512";
    case Isa::kAvx512Bf16:
      return "avx512-bf16";
  }
  return "unknown";
}

Isa detect_isa() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("fma") != 0;
  const bool avx512 =
      avx2 && __builtin_cpu_supports("avx512f") != 0 && __builtin_cpu_supports("avx512bw") != 0 &&
      __builtin_cpu_supports("avx512dq") != 0 && __builtin_cpu_supports("avx512vl") != 0;
  if (avx512 && __builtin_cpu_supports("avx512bf16") != 0) {
    return Isa::kAvx512Bf16;
  }
  if (avx512) {
    return Isa::kAvx512;
  }
  if (avx2) {
    return Isa::kAvx2;
  }
#endif
  return Isa::kScalar;
}

namespace {

constexpr std::size_t kAlignment = 64;
constexpr std::size_t kHugePage = std::size_t{2} << 20;
// Address space only: pages of a block that no buffer has touched are not backed.
constexpr std::size_t kArenaBlock = std::size_t{64} << 20;

std::size_t round_up(std::size_t num_bytes, std::size_t alignment) {
  return (num_bytes + alignment - 1) / alignment * alignment;
}

// Fresh anonymous pages are zero already and stay unbacked until first written. The kernel gives
// huge pages only to ranges that begin and end on their borders.
std::shared_ptr<std::byte> map_huge(std::size_t num_bytes) {
  const std::size_t mapped = round_up(num_bytes, kHugePage) + kHugePage;
  void* base = mmap(nullptr, mapped, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (base == MAP_FAILED) {
    throw std::bad_alloc();
  }
  void* aligned = base;
  std::size_t space = mapped;
  std::align(kHugePage, mapped - kHugePage, aligned, space);
  madvise(aligned, mapped - kHugePage, MADV_HUGEPAGE);
  std::shared_ptr<void> owner(base, [mapped](void* memory) { munmap(memory, mapped); });
  return {std::move(owner), static_cast<std::byte*>(aligned)};
}

std::shared_ptr<std::byte> allocate_small(std::size_t num_bytes) {
  const std::size_t rounded = round_up(num_bytes, kAlignment);
  void* memory = std::aligned_alloc(kAlignment, rounded);
  if (memory == nullptr) {
    throw std::bad_alloc();
  }
  std::memset(memory, 0, rounded);
  return {static_cast<std::byte*>(memory), [](std::byte* bytes) { std::free(bytes); }};
}

}  // namespace

HostBuffer::HostBuffer(std::size_t num_bytes) : num_bytes_(num_bytes) {
  if (num_bytes != 0) {
    memory_ = num_bytes >= kHugePage ? map_huge(num_bytes) : allocate_small(num_bytes);
    data_ = memory_.get();
  }
}

HostBuffer::HostBuffer(HostBuffer&& other) noexcept
    : memory_(std::move(other.memory_)),
      data_(std::exchange(other.data_, nullptr)),
      num_bytes_(std::exchange(other.num_bytes_, 0)) {}

HostBuffer& HostBuffer::operator=(HostBuffer&& other) noexcept {
  memory_ = std::move(other.memory_);
  data_ = std::exchange(other.data_, nullptr);
  num_bytes_ = std::exchange(other.num_bytes_, 0);
  return *this;
}

HostBuffer HostArena::allocate(std::size_t num_bytes) {
  if (num_bytes == 0 || num_bytes > kArenaBlock / 4) {
    return HostBuffer(num_bytes);  // large enough for huge pages of its own
  }
  const std::size_t rounded = round_up(num_bytes, kAlignment);
  if (!block_ || block_bytes_ - used_bytes_ < rounded) {
    block_ = map_huge(kArenaBlock);
    block_bytes_ = kArenaBlock;
    used_bytes_ = 0;
  }
  HostBuffer buffer;
  buffer.memory_ = block_;
  buffer.data_ = block_.get() + used_bytes_;
  buffer.num_bytes_ = num_bytes;
  used_bytes_ += rounded;
  return buffer;
}

}  // namespace fastfd::device
