#pragma once

/// Shared by the tests of the data-plane kernels: windows of several servers in one process, and
/// what the lane's control block and abort state hold.

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

#include "fastfd/core/dtype.h"
#include "fastfd/core/ids.h"
#include "gpu/device_array.h"
#include "kernels/layout/lane_control.h"
#include "kernels/layout/row.h"
#include "kernels/layout/window.h"
#include "support/random_values.h"

namespace fastfd::testing {

using test::random_floats;
using test::to_bf16;
using test::to_floats;

/// By definition of the format; NaN for the two codes that are none.
inline float decode_e4m3(std::uint8_t code) {
  const int exponent = (code >> 3) & 15;
  const int mantissa = code & 7;
  float value = exponent == 0 ? std::ldexp(static_cast<float>(mantissa), -9)
                              : std::ldexp(static_cast<float>(8 + mantissa), exponent - 10);
  if ((code & 0x7f) == 0x7f) {
    value = NAN;
  }
  return (code & 0x80) != 0 ? -value : value;
}

/// A payload row as floats.
inline std::vector<float> decode_row(const layout::RowLayout& layout, const std::byte* row) {
  std::vector<float> values(layout.hidden_dim);
  for (std::uint32_t i = 0; i < layout.hidden_dim; ++i) {
    if (layout.dtype == DType::kFloat8E4M3) {
      float scale = 0.0F;
      std::memcpy(&scale, layout.scales(row) + i / layout::kScaleGroup, sizeof(scale));
      values[i] = scale * decode_e4m3(std::to_integer<std::uint8_t>(row[i]));
    } else if (layout.dtype == DType::kBFloat16) {
      bf16 value;
      std::memcpy(&value, row + i * sizeof(value), sizeof(value));
      values[i] = value.to_float();
    } else {
      std::memcpy(&values[i], row + i * sizeof(float), sizeof(float));
    }
  }
  return values;
}

/// One window for each of `num_peers`; every byte a pattern, every flag down.
class Windows {
 public:
  Windows(std::uint32_t num_peers, layout::SlotGrid grid) : grid_(grid), pointers_(num_peers) {
    std::vector<std::byte*> pointers;
    for (std::uint32_t peer = 0; peer < num_peers; ++peer) {
      memory_.push_back(std::make_unique<DeviceArray<std::byte>>(grid.bytes()));
      put(peer, std::vector<std::byte>(grid.bytes(), kPattern));
      for (std::uint32_t lane = 0; lane < kMaxLanes; ++lane) {
        for (std::uint32_t buffer = 0; buffer < layout::kBuffersPerLane; ++buffer) {
          put_flag(peer, lane, buffer, layout::kNoFlag);
        }
      }
      pointers.push_back(memory_.back()->data());
    }
    pointers_.put(pointers);
  }

  static constexpr std::byte kPattern{0xa5};

  std::byte* const* pointers() const { return pointers_.data(); }
  std::byte* window(std::uint32_t peer) { return memory_[peer]->data(); }
  std::vector<std::byte> get(std::uint32_t peer) const { return memory_[peer]->get(); }
  void put(std::uint32_t peer, const std::vector<std::byte>& bytes) { memory_[peer]->put(bytes); }
  /// The kernels find no window for this rank.
  void forget(std::uint32_t peer) {
    std::vector<std::byte*> pointers = pointers_.get();
    pointers[peer] = nullptr;
    pointers_.put(pointers);
  }

  void put_flag(std::uint32_t peer, std::uint32_t lane, std::uint32_t buffer, std::uint64_t value) {
    put_bytes(peer, grid_.slot_offset(lane, buffer) + layout::SlotGrid::flag_offset(), &value,
              sizeof(value));
  }
  std::uint64_t get_flag(std::uint32_t peer, std::uint32_t lane, std::uint32_t buffer) const {
    std::uint64_t value = 0;
    get_bytes(peer, grid_.slot_offset(lane, buffer) + layout::SlotGrid::flag_offset(), &value,
              sizeof(value));
    return value;
  }
  void put_header(std::uint32_t peer, std::uint32_t lane, std::uint32_t buffer,
                  const layout::SlotHeader& header) {
    put_bytes(peer, grid_.slot_offset(lane, buffer) + layout::SlotGrid::header_offset(), &header,
              sizeof(header));
  }
  layout::SlotHeader get_header(std::uint32_t peer, std::uint32_t lane,
                                std::uint32_t buffer) const {
    layout::SlotHeader header{};
    get_bytes(peer, grid_.slot_offset(lane, buffer) + layout::SlotGrid::header_offset(), &header,
              sizeof(header));
    return header;
  }

 private:
  void put_bytes(std::uint32_t peer, std::size_t offset, const void* source, std::size_t count) {
    require_cuda(cudaMemcpy(memory_[peer]->data() + offset, source, count, cudaMemcpyHostToDevice),
                 "copy into a window");
  }
  void get_bytes(std::uint32_t peer, std::size_t offset, void* target, std::size_t count) const {
    require_cuda(cudaDeviceSynchronize(), "kernel");
    require_cuda(cudaMemcpy(target, memory_[peer]->data() + offset, count, cudaMemcpyDeviceToHost),
                 "copy out of a window");
  }

  layout::SlotGrid grid_;
  std::vector<std::unique_ptr<DeviceArray<std::byte>>> memory_;
  DeviceArray<std::byte*> pointers_;
};

/// One value in device memory.
template <typename T>
class DeviceValue {
 public:
  explicit DeviceValue(const T& value = T{}) : array_(std::vector<T>{value}) {}
  T* data() { return array_.data(); }
  T get() const { return array_.get()[0]; }
  void put(const T& value) { array_.put({value}); }

 private:
  DeviceArray<T> array_;
};

/// A word that host and device see.
class PinnedWord {
 public:
  PinnedWord() {
    require_cuda(cudaMallocHost(&word_, sizeof(*word_)), "cudaMallocHost");
    *word_ = 0;
  }
  ~PinnedWord() { cudaFreeHost(word_); }
  PinnedWord(const PinnedWord&) = delete;
  PinnedWord& operator=(const PinnedWord&) = delete;
  std::uint32_t* data() { return word_; }
  void raise() { __atomic_store_n(word_, 1U, __ATOMIC_SEQ_CST); }

 private:
  std::uint32_t* word_ = nullptr;
};

/// A stream that waits for the copies of DeviceArray, which go through the default stream and may
/// return before they have arrived.
class TestStream {
 public:
  TestStream() { require_cuda(cudaStreamCreate(&stream_), "stream"); }
  ~TestStream() { cudaStreamDestroy(stream_); }
  TestStream(const TestStream&) = delete;
  TestStream& operator=(const TestStream&) = delete;
  operator cudaStream_t() const { return stream_; }  // NOLINT(google-explicit-constructor)
  void wait() const { require_cuda(cudaStreamSynchronize(stream_), "stream"); }

 private:
  cudaStream_t stream_ = nullptr;
};

/// The hop of most tests: no number is another's default.
inline constexpr layout::LaneHop kTestHop{/*lane=*/2, /*layer=*/5, /*num_layers=*/9};

inline layout::LaneControl test_control(std::uint32_t num_rows = 0, ServerMask participants = 0) {
  layout::LaneControl control;
  control.step = 77;
  control.epoch = 3;
  control.num_rows = num_rows;
  control.participants = participants;
  return control;
}

inline layout::SlotHeader header_of(const layout::LaneControl& control, const layout::LaneHop& hop,
                                    std::uint32_t num_rows, std::uint32_t num_routes) {
  layout::SlotHeader header{};
  header.num_rows = num_rows;
  header.num_routes = num_routes;
  header.epoch = control.epoch;
  header.lane = hop.lane;
  header.step = control.step;
  header.layer = hop.layer;
  return header;
}

}  // namespace fastfd::testing
