#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

namespace fastfd::device {

/// Instruction sets the CPU kernels are built for, best last.
enum class Isa : std::uint8_t { kScalar, kAvx2, kAvx512, kAvx512Bf16 };

const char* to_string(Isa isa);

/// The best set this CPU and operating system support.
Isa detect_isa();

/// Threads that split one operator. The calling thread is worker 0, so a pool of one has no
/// threads of its own. Not re-entrant: one thread uses a pool at a time.
class WorkerPool {
 public:
  /// Workers spin for `spin` after a job before they sleep, and the caller for the last of them,
  /// unless they lose their core while they do. Where threads outnumber cores it should be 0.
  explicit WorkerPool(std::uint32_t num_threads, std::chrono::microseconds spin = {});
  /// nullptr for one thread, which needs no pool.
  static std::shared_ptr<WorkerPool> make_if_several(std::uint32_t num_threads,
                                                     std::chrono::microseconds spin);
  ~WorkerPool();
  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;

  std::uint32_t num_threads() const;

  /// No worker sleeps: splitting costs about a microsecond, not the tens that waking takes.
  bool is_awake() const;

  /// Runs body(begin, end) over a partition of [0, count) into chunks of at least `grain` and
  /// returns when all have finished; workers that come when all chunks are taken are not waited
  /// for. Which thread runs which chunk is not fixed; kernels keep every sum inside one chunk so
  /// that results don't depend on it.
  void parallel_for(std::size_t count, std::size_t grain,
                    const std::function<void(std::size_t, std::size_t)>& body);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// What CPU kernels run on: the counterpart of a CUDA stream. Work is done when a launch returns.
struct CpuStream {
  WorkerPool* workers = nullptr;  ///< nullptr: the calling thread alone
  Isa isa = Isa::kScalar;
};

/// Zero-filled memory aligned to 64 bytes (huge pages, where the system grants them, from 2 MiB
/// on). Allocation failure throws std::bad_alloc. Movable, not copyable.
class HostBuffer {
 public:
  HostBuffer() = default;
  explicit HostBuffer(std::size_t num_bytes);
  HostBuffer(HostBuffer&& other) noexcept;
  HostBuffer& operator=(HostBuffer&& other) noexcept;
  ~HostBuffer() = default;

  std::byte* data() { return data_; }
  const std::byte* data() const { return data_; }
  std::size_t num_bytes() const { return num_bytes_; }
  template <typename T>
  T* as() {
    return reinterpret_cast<T*>(data_);
  }
  template <typename T>
  const T* as() const {
    return reinterpret_cast<const T*>(data_);
  }

 private:
  friend class HostArena;
  std::shared_ptr<std::byte> memory_;  // an arena's buffers share their block
  std::byte* data_ = nullptr;
  std::size_t num_bytes_ = 0;
};

/// Memory for many buffers of one owner, such as the weights of a role: they lie side by side in
/// huge pages. Expert matrices are smaller than a huge page, and a pass over all layers touches
/// more 4 KiB pages than the TLB holds. A block is freed with the last of its buffers. Not
/// thread-safe.
class HostArena {
 public:
  HostBuffer allocate(std::size_t num_bytes);

 private:
  std::shared_ptr<std::byte> block_;
  std::size_t block_bytes_ = 0;
  std::size_t used_bytes_ = 0;
};

}  // namespace fastfd::device
