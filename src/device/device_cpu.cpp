#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <new>
#include <thread>
#include <utility>
#include <vector>

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

struct WorkerPool::Impl {
  using Body = std::function<void(std::size_t, std::size_t)>;

  explicit Impl(std::uint32_t num_threads) {
    for (std::uint32_t i = 1; i < num_threads; ++i) {
      threads.emplace_back([this] { work(); });
    }
  }

  ~Impl() {
    {
      const std::lock_guard lock(mutex);
      stop = true;
    }
    start.notify_all();
    for (auto& thread : threads) {
      thread.join();
    }
  }

  void work() {
    std::uint64_t seen = 0;
    std::unique_lock lock(mutex);
    for (;;) {
      start.wait(lock, [&] { return stop || generation != seen; });
      if (stop) {
        return;
      }
      seen = generation;
      lock.unlock();
      run_chunks();
      lock.lock();
      if (--num_busy == 0) {
        done.notify_one();
      }
    }
  }

  void run_chunks() {
    for (;;) {
      const std::size_t begin = next.fetch_add(chunk, std::memory_order_relaxed);
      if (begin >= count) {
        return;
      }
      (*body)(begin, std::min(begin + chunk, count));
    }
  }

  std::mutex mutex;
  std::condition_variable start;
  std::condition_variable done;
  std::vector<std::thread> threads;
  std::uint64_t generation = 0;
  std::size_t num_busy = 0;
  bool stop = false;
  // The job: written under the mutex before `generation` moves, constant while workers run.
  const Body* body = nullptr;
  std::size_t count = 0;
  std::size_t chunk = 1;
  std::atomic<std::size_t> next{0};
};

WorkerPool::WorkerPool(std::uint32_t num_threads)
    : impl_(std::make_unique<Impl>(std::max(1U, num_threads))) {}
WorkerPool::~WorkerPool() = default;

std::uint32_t WorkerPool::num_threads() const {
  return static_cast<std::uint32_t>(impl_->threads.size()) + 1;
}

void WorkerPool::parallel_for(std::size_t count, std::size_t grain,
                              const std::function<void(std::size_t, std::size_t)>& body) {
  if (count == 0) {
    return;
  }
  const std::size_t num_workers = impl_->threads.size() + 1;
  const std::size_t chunk =
      std::max(std::max<std::size_t>(grain, 1), (count + num_workers - 1) / num_workers);
  if (num_workers == 1 || chunk >= count) {
    body(0, count);
    return;
  }
  {
    const std::lock_guard lock(impl_->mutex);
    impl_->body = &body;
    impl_->count = count;
    impl_->chunk = chunk;
    impl_->next.store(0, std::memory_order_relaxed);
    impl_->num_busy = impl_->threads.size();
    ++impl_->generation;
  }
  impl_->start.notify_all();
  impl_->run_chunks();
  std::unique_lock lock(impl_->mutex);
  impl_->done.wait(lock, [this] { return impl_->num_busy == 0; });
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
