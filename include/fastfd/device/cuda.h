#pragma once

/// One GPU of this host: streams, events, memory and captured graphs. Nothing here needs CUDA's
/// headers, and nothing here links the driver: a program that was built with CUDA starts where
/// there is none, and a program that was built without it has the same symbols. What can't be had
/// is said by the first call, with cause and remedy.
///
/// Constructors and `open` are for start-up and throw DeviceError; what a running server calls
/// returns Status. A thread makes its device current (CudaDevice::make_current) before it creates
/// or launches anything. Objects move between threads; none may be used by two at a time.
/// Destructors never throw and wait for nothing, except that memory is only returned when no kernel
/// runs.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>

#include "fastfd/core/status.h"
#include "fastfd/device/cuda_stream.h"

struct CUevent_st;
struct CUgraphExec_st;

namespace fastfd::device {

/// Why a GPU can't be used as asked. what() names cause and remedy.
class DeviceError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Sets what the driver reads once, at the process's first CUDA call: CUDA_MODULE_LOADING=EAGER and
/// CUDA_DEVICE_MAX_CONNECTIONS=32. Lazy loading synchronises with a resident waiting kernel, and
/// streams that share a hardware queue wait for each other's kernels: both hang (PROTOCOL 5).
/// Overrides what the user set. Call it in main, before threads and before any CUDA call.
///
/// `num_queues`: 32 is the most there are, for all servers of one process. A server that is a
/// process of its own has a stream a lane and few others; under MPS the queues of all clients come
/// from one pool, which four clients with 32 each exhaust ("out of memory" at their first call).
void set_cuda_environment(std::uint32_t num_queues = 32);
inline constexpr std::uint32_t kQueuesOfOneServer = 8;

/// OK if each stream that is alive in this process can have a hardware queue to itself; else
/// kInvalidArgument, with the remedy. Always OK where set_cuda_environment was not called.
Status check_queues();

/// OK if this process can use CUDA on at least one GPU; else kUnavailable with cause and remedy.
Status cuda_availability();

struct DeviceMemory {
  std::uint64_t free_bytes = 0;
  std::uint64_t total_bytes = 0;
};

/// One GPU and what it is. A value; the driver's context behind it lives as long as the process.
class CudaDevice {
 public:
  /// GPU `index` of those this process sees, made current on the calling thread. Throws DeviceError
  /// if it is not there, can't be used, or has no kernels in this build.
  static CudaDevice open(std::uint32_t index);

  /// Needed once on every thread that creates or launches something.
  Status make_current() const;
  /// Of the whole GPU, other processes included.
  Result<DeviceMemory> memory() const;
  /// Waits for all work of this process on the GPU. For tests and shutdown.
  Status synchronize() const;

  std::uint32_t index() const { return index_; }
  const std::string& name() const { return name_; }
  std::uint32_t num_sms() const { return num_sms_; }
  std::uint32_t compute_major() const { return compute_major_; }
  std::uint32_t compute_minor() const { return compute_minor_; }
  /// The processes of this GPU share one fault domain (CUDA MPS): one that dies with a kernel
  /// running takes all others' contexts with it.
  bool uses_mps() const { return uses_mps_; }
  /// "cuda:0 (NVIDIA H200, 132 SMs)"
  std::string to_string() const;

 private:
  CudaDevice() = default;
  std::uint32_t index_ = 0;
  std::string name_;
  std::uint32_t num_sms_ = 0;
  std::uint32_t compute_major_ = 0;
  std::uint32_t compute_minor_ = 0;
  bool uses_mps_ = false;
};

/// Whose kernels start first where several streams have some ready; running ones are not stopped.
/// Levels beyond those of the GPU (5 above normal on an H200) are its highest.
struct StreamPriority {
  std::uint32_t level = 0;
};
inline constexpr StreamPriority kNormalPriority{0};
inline constexpr StreamPriority kHighestPriority{~0U};

class DeviceEvent;
class SmPartition;

/// A stream that never waits for the default stream, nor that for it. Over the whole GPU; streams
/// of a part of it come from SmPartition::make_stream.
class DeviceStream {
 public:
  explicit DeviceStream(const CudaDevice& device, StreamPriority priority = kNormalPriority);

  CudaStream handle() const { return handle_.get(); }
  /// Blocks until everything enqueued has run. kInternal if a kernel failed.
  Status synchronize() const;
  /// True if everything enqueued has run. Never blocks.
  Result<bool> is_idle() const;
  /// Work enqueued from now on runs after `event` (as last recorded).
  Status wait(const DeviceEvent& event) const;

 private:
  friend class SmPartition;
  struct Deleter {
    std::shared_ptr<void> partition;  // outlives the stream
    void operator()(CUstream_st* stream) const;
  };
  DeviceStream(CudaStream stream, std::shared_ptr<void> partition);
  std::unique_ptr<CUstream_st, Deleter> handle_;
};

struct EventOptions {
  bool timing = false;  ///< for elapsed_ms
  bool sleeps = false;  ///< synchronize() sleeps instead of spinning: later by tens of microseconds
};

class DeviceEvent {
 public:
  explicit DeviceEvent(const CudaDevice& device, EventOptions options = {});

  Status record(CudaStream stream) const;
  /// True if the work before the last record has run. Never blocks.
  Result<bool> has_passed() const;
  Status synchronize() const;
  /// From `start` to this, both recorded with timing and passed.
  Result<float> elapsed_ms(const DeviceEvent& start) const;
  CUevent_st* handle() const { return handle_.get(); }

 private:
  struct Deleter {
    void operator()(CUevent_st* event) const;
  };
  std::unique_ptr<CUevent_st, Deleter> handle_;
};

/// Memory of one GPU, not initialised, aligned to 256 bytes. Throws DeviceError with what was asked
/// and what is free.
class DeviceBuffer {
 public:
  DeviceBuffer() = default;
  DeviceBuffer(const CudaDevice& device, std::size_t num_bytes);

  std::byte* data() const { return data_.get(); }
  std::size_t num_bytes() const { return num_bytes_; }
  template <typename T>
  T* as() const {
    return reinterpret_cast<T*>(data_.get());
  }

 private:
  struct Deleter {
    void operator()(std::byte* memory) const;
  };
  std::unique_ptr<std::byte, Deleter> data_;
  std::size_t num_bytes_ = 0;
};

/// Zero-filled host memory that the GPU reads and writes where it lies, at the same address: abort
/// words, plan uploads, results. The only host memory that asynchronous copies may touch.
class PinnedBuffer {
 public:
  PinnedBuffer() = default;
  PinnedBuffer(const CudaDevice& device, std::size_t num_bytes);

  std::byte* data() const { return data_.get(); }
  std::size_t num_bytes() const { return num_bytes_; }
  template <typename T>
  T* as() const {
    return reinterpret_cast<T*>(data_.get());
  }

 private:
  struct Deleter {
    void operator()(std::byte* memory) const;
  };
  std::unique_ptr<std::byte, Deleter> data_;
  std::size_t num_bytes_ = 0;
};

/// Enqueues a copy between any two of DeviceBuffer, PinnedBuffer and windows.
Status copy_async(void* to, const void* from, std::size_t num_bytes, CudaStream stream);
/// Enqueues filling with one byte value.
Status fill_async(void* to, std::uint8_t value, std::size_t num_bytes, CudaStream stream);

/// Launches captured once and replayed: kernels read what changes from device memory
/// (layout::LaneControl).
class DeviceGraph {
 public:
  /// Captures what `enqueue` puts on `stream` (and on streams it forks from it and joins again) and
  /// uploads the result. `enqueue` may not allocate or synchronise; other threads may. Its error is
  /// returned as it is. Capture while no kernel waits: it synchronises.
  static Result<DeviceGraph> capture(const DeviceStream& stream,
                                     const std::function<Status()>& enqueue);

  Status launch(CudaStream stream) const;
  std::size_t num_nodes() const { return num_nodes_; }

 private:
  struct Deleter {
    void operator()(CUgraphExec_st* graph) const;
  };
  DeviceGraph() = default;
  std::unique_ptr<CUgraphExec_st, Deleter> handle_;
  std::size_t num_nodes_ = 0;
};

}  // namespace fastfd::device
