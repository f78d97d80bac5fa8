#include "attention_server/gpu_lane.h"

#include <algorithm>
#include <utility>

namespace fastfd::attention_server {
namespace {

using device::copy_async;
using device::DeviceBuffer;

// Arrays of one staging block, one after the other.
class Carver {
 public:
  explicit Carver(std::byte* memory) : memory_(memory) {}

  template <typename T>
  T* take(std::size_t count) {
    constexpr std::size_t kAlignment = 128;
    T* array = memory_ == nullptr ? nullptr : reinterpret_cast<T*>(memory_ + used_);
    used_ += (count * sizeof(T) + kAlignment - 1) / kAlignment * kAlignment;
    return array;
  }
  std::size_t used() const { return used_; }

 private:
  std::byte* memory_;
  std::size_t used_ = 0;
};

std::size_t carve(GpuLaneStaging& staging, const GpuLaneShape& shape) {
  Carver carver(staging.memory.data());
  staging.control = carver.take<layout::LaneControl>(1);
  staging.rows = carver.take<layout::LaneRow>(shape.max_rows);
  staging.spans = carver.take<layout::LaneSpan>(shape.max_spans);
  staging.samples = carver.take<layout::LaneSample>(shape.max_spans);
  staging.pages = carver.take<PageId>(shape.max_page_updates);
  staging.opened = carver.take<GpuSlotState>(shape.max_spans);
  staging.results = carver.take<kernels::cuda::SampledRow>(shape.max_spans);
  staging.times = carver.take<layout::HopTimes>(GpuLane::num_times(shape.num_layers));
  staging.abort = carver.take<layout::AbortState>(1);
  return carver.used();
}

GpuLaneStaging make_staging(const device::CudaDevice& device, const GpuLaneShape& shape) {
  GpuLaneStaging staging;
  const std::size_t num_bytes = carve(staging, shape);
  staging.memory = device::PinnedBuffer(device, num_bytes);
  carve(staging, shape);
  return staging;
}

}  // namespace

GpuLane::GpuLane(const device::GpuPart& gpu, const model::ModelSpec& spec,
                 const GpuLaneShape& shape)
    : shape_(shape), stream_(gpu.make_stream(shape.priority)) {
  const device::CudaDevice& device = gpu.device();
  for (std::uint32_t i = 0; i < shape.ring_size; ++i) {
    ring_.push_back({make_staging(device, shape), device::DeviceEvent(device, {.sleeps = true})});
  }
  for (const Array& array : arrays(spec, shape)) {
    this->*array.buffer = DeviceBuffer(device, array.num_bytes);
  }
  progress_word_ = device::PinnedBuffer(device, sizeof(std::uint64_t));
  workspace_ = make_workspace(spec, shape);
  workspace_.data = workspace_memory_.data();
}

Status GpuLane::reset() {
  auto status = device::fill_async(counters_.data(), 0, counters_.num_bytes(), stream());
  return status ? stream_.synchronize() : status;
}

Status GpuLane::upload(const LaneBatch& batch, const layout::LaneControl& control) {
  current_ = (current_ + 1) % shape_.ring_size;
  RingEntry& entry = ring_[current_];
  if (entry.used) {
    if (auto status = entry.done.synchronize(); !status) {
      return status;
    }
  }
  entry.used = true;
  GpuLaneStaging& to = entry.staging;
  *to.control = control;
  std::size_t num_rows = 0;
  for (std::size_t i = 0; i < batch.spans.size(); ++i) {
    const auto& span = batch.spans[i];
    to.spans[i] = {.first_row = static_cast<std::uint32_t>(span.first_row),
                   .num_rows = static_cast<std::uint32_t>(span.num_rows),
                   .start_position = static_cast<std::uint32_t>(span.start_position),
                   .slot = batch.span_slots[i]};
    for (std::int64_t row = 0; row < span.num_rows; ++row, ++num_rows) {
      to.rows[num_rows] = {.token = batch.tokens[num_rows],
                           .slot = batch.span_slots[i],
                           .position = static_cast<std::uint32_t>(batch.positions[num_rows])};
    }
  }
  const std::size_t num_spans = batch.spans.size();
  const std::size_t num_samples = batch.samples.size();
  for (std::size_t i = 0; i < num_samples; ++i) {
    const SampleRow& sample = batch.samples[i];
    to.samples[i] = {.row = sample.row,
                     .slot = sample.slot,
                     .position = sample.position,
                     .num_generated = sample.position - sample.prompt_len};
  }
  auto status = copy_async(control_.data(), to.control, sizeof(*to.control), stream());
  const auto put = [&](const DeviceBuffer& array, const auto* from, std::size_t count) {
    if (status && count > 0) {
      status = copy_async(array.data(), from, count * sizeof(*from), stream());
    }
  };
  put(rows_, to.rows, num_rows);
  put(spans_, to.spans, num_spans);
  put(samples_, to.samples, num_samples);
  return status;
}

}  // namespace fastfd::attention_server
