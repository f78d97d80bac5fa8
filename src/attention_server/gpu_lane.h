#pragma once

/// One lane's memory on the GPU, and how a plan gets there.

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "attention_server/sequence_table.h"
#include "fastfd/attention_server/attention_server.h"
#include "fastfd/core/status.h"
#include "fastfd/device/cuda.h"
#include "fastfd/device/gpu_part.h"
#include "fastfd/model/model.h"
#include "kernels/attention/op_cuda.h"
#include "kernels/dispatch/op_cuda.h"
#include "kernels/layout/hop_times.h"
#include "kernels/layout/lane_batch.h"
#include "kernels/layout/lane_control.h"
#include "kernels/sampling/op_cuda.h"

namespace fastfd::attention_server {

/// The largest step of a lane.
struct GpuLaneShape {
  std::uint32_t max_rows = 0;
  std::uint32_t max_spans = 0;    ///< sequences
  std::uint32_t max_context = 0;  ///< tokens
  std::size_t max_page_updates = 0;
  std::uint32_t num_servers = 0;  ///< FFN
  std::uint32_t num_layers = 0;
  device::StreamPriority priority;
  std::uint32_t ring_size = 0;  ///< steps whose uploads may be on their way
};

inline constexpr std::uint32_t kMaxLogitBiases = 300;  ///< of a request, as the API allows
inline constexpr std::uint32_t kMaxStopTokens = 64;

/// What the sampler knows of a slot, on its way to the GPU.
struct GpuSlotState {
  kernels::cuda::SlotSampling sampling;
  kernels::cuda::LogitBias logit_biases[kMaxLogitBiases];
  TokenId stop_tokens[kMaxStopTokens];
};

/// What a step reads and writes in host memory until it has run.
struct GpuLaneStaging {
  device::PinnedBuffer memory;
  layout::LaneControl* control = nullptr;
  layout::LaneRow* rows = nullptr;        // [max_rows]
  layout::LaneSpan* spans = nullptr;      // [max_spans]
  layout::LaneSample* samples = nullptr;  // [max_spans]
  PageId* pages = nullptr;                // [max_page_updates]: page-table entries that were set
  GpuSlotState* opened = nullptr;         // [max_spans]
  kernels::cuda::SampledRow* results = nullptr;  // [max_spans], written by the GPU
  layout::HopTimes* times = nullptr;             // [num_times], the last: of the whole step
  layout::AbortState* abort = nullptr;           // as the step left it
};

/// Used by the server's loop thread, but for staging(), whose results the collector reads once
/// done() has passed.
class GpuLane {
 public:
  GpuLane(const device::GpuPart& gpu, const model::ModelSpec& spec, const GpuLaneShape& shape);

  device::CudaStream stream() const { return stream_.handle(); }
  const device::DeviceStream& device_stream() const { return stream_; }

  /// Fills the ring's next staging with the batch and enqueues its copies. Blocks only if the GPU
  /// is a whole ring behind.
  Status upload(const LaneBatch& batch, const layout::LaneControl& control);
  /// Of the step that was uploaded last.
  GpuLaneStaging& staging() { return ring_[current_].staging; }
  const device::DeviceEvent& done() const { return ring_[current_].done; }
  std::uint32_t ring_index() const { return current_; }
  GpuLaneStaging& staging_at(std::uint32_t index) { return ring_[index].staging; }
  const device::DeviceEvent& done_at(std::uint32_t index) const { return ring_[index].done; }

  // Device memory, in the shapes of the kernels' params.
  layout::LaneControl* control() const { return control_.as<layout::LaneControl>(); }
  layout::LaneRow* rows() const { return rows_.as<layout::LaneRow>(); }
  layout::LaneSpan* spans() const { return spans_.as<layout::LaneSpan>(); }
  layout::LaneSample* samples() const { return samples_.as<layout::LaneSample>(); }
  float* residual() const { return residual_.as<float>(); }
  bf16* normed() const { return normed_.as<bf16>(); }
  bf16* qkv() const { return qkv_.as<bf16>(); }
  bf16* q() const { return q_.as<bf16>(); }
  bf16* attention_out() const { return attention_out_.as<bf16>(); }
  bf16* gate() const { return gate_.as<bf16>(); }
  bf16* delta_projected() const { return delta_projected_.as<bf16>(); }
  float* delta_mixed() const { return delta_mixed_.as<float>(); }
  float* delta_heads() const { return delta_heads_.as<float>(); }
  bf16* delta_out() const { return delta_out_.as<bf16>(); }
  float* latent_q_down() const { return latent_q_down_.as<float>(); }
  bf16* latent_q_normed() const { return latent_q_normed_.as<bf16>(); }
  bf16* latent_q() const { return latent_q_.as<bf16>(); }
  float* latent_kv() const { return latent_kv_.as<float>(); }
  bf16* latent_queries() const { return latent_queries_.as<bf16>(); }
  bf16* latent_sums() const { return latent_sums_.as<bf16>(); }
  bf16* latent_values() const { return latent_values_.as<bf16>(); }
  float* inverse_rms() const { return inverse_rms_.as<float>(); }
  bf16* shared_gate_up() const { return shared_gate_up_.as<bf16>(); }
  bf16* shared_hidden() const { return shared_hidden_.as<bf16>(); }
  std::int32_t* row_index() const { return row_index_.as<std::int32_t>(); }
  std::uint32_t* sent_rows() const { return sent_rows_.as<std::uint32_t>(); }
  float* partial_logits() const { return partial_logits_.as<float>(); }
  kernels::cuda::DispatchCounters* counters() const {
    return counters_.as<kernels::cuda::DispatchCounters>();
  }
  std::uint32_t* ready() const { return ready_.as<std::uint32_t>(); }
  /// Waits of all layers, in order; there is room for two a layer.
  layout::HopTimes* times() const { return times_.as<layout::HopTimes>(); }
  /// Begin and end of the step, behind them.
  layout::HopTimes* step_times() const { return times() + num_times() - 1; }
  std::size_t num_times() const { return num_times(shape_.num_layers); }
  static std::size_t num_times(std::uint32_t num_layers) { return 2 * std::size_t{num_layers} + 1; }
  /// Pinned, written by the lane's waits.
  std::uint64_t* progress_word() const { return progress_word_.as<std::uint64_t>(); }
  float* logits() const { return logits_.as<float>(); }
  float* adjusted_logits() const { return adjusted_logits_.as<float>(); }
  kernels::cuda::SampledRow* results() const { return results_.as<kernels::cuda::SampledRow>(); }
  const kernels::cuda::AttentionWorkspace& workspace() const { return workspace_; }

  /// Zeros what kernels expect to find zero. Nothing of the lane may be running.
  Status reset();

  /// GPU memory of a lane of this shape.
  static std::uint64_t num_bytes(const model::ModelSpec& spec, const GpuLaneShape& shape);

 private:
  struct Array {
    device::DeviceBuffer GpuLane::*buffer;
    std::size_t num_bytes;
  };
  /// All of a lane's memory on the GPU: what the constructor allocates and num_bytes() counts.
  static std::vector<Array> arrays(const model::ModelSpec& spec, const GpuLaneShape& shape);
  /// Of attention, without its memory.
  static kernels::cuda::AttentionWorkspace make_workspace(const model::ModelSpec& spec,
                                                          const GpuLaneShape& shape);

  struct RingEntry {
    GpuLaneStaging staging;
    device::DeviceEvent done;
    bool used = false;
  };

  GpuLaneShape shape_;
  device::DeviceStream stream_;
  std::vector<RingEntry> ring_;
  std::uint32_t current_ = 0;
  device::DeviceBuffer control_, rows_, spans_, samples_;
  device::DeviceBuffer residual_, normed_, qkv_, q_, attention_out_;
  device::DeviceBuffer gate_;  // of attention with an output gate
  device::DeviceBuffer delta_projected_, delta_mixed_, delta_heads_, delta_out_;
  device::DeviceBuffer latent_q_down_, latent_q_normed_, latent_q_, latent_kv_;
  device::DeviceBuffer latent_queries_, latent_sums_, latent_values_;
  device::DeviceBuffer inverse_rms_;                     // of norms over whole projections
  device::DeviceBuffer shared_gate_up_, shared_hidden_;  // of shared experts
  device::DeviceBuffer row_index_, sent_rows_, partial_logits_, counters_, ready_;
  device::DeviceBuffer times_;
  device::PinnedBuffer progress_word_;
  device::DeviceBuffer logits_, adjusted_logits_, results_;
  device::DeviceBuffer workspace_memory_;
  kernels::cuda::AttentionWorkspace workspace_;
};

}  // namespace fastfd::attention_server
