#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "attention_server/gpu_full_attention.h"
#include "attention_server/gpu_gated_delta_net.h"
#include "attention_server/gpu_lane.h"
#include "attention_server/gpu_latent_attention.h"
#include "attention_server/piece_order.h"
#include "attention_server/sequence_table.h"
#include "fastfd/attention_server/gpu_attention_server.h"
#include "fastfd/core/status.h"
#include "fastfd/device/gpu_part.h"
#include "fastfd/model/device_weights.h"
#include "fastfd/transport/device_port.h"

namespace fastfd::attention_server {

/// The arithmetic of an attention server on a GPU: enqueues everything that a (step, lane) does,
/// from its plan to its sampled tokens. The host waits for nothing in between. Loop thread only.
class GpuRunner {
 public:
  /// Captures the graphs of all lanes: only while no kernel waits on this GPU.
  GpuRunner(const AttentionServerOptions& options, const model::ModelSpec& spec,
            std::shared_ptr<const model::DeviceAttentionWeights> weights,
            const device::GpuPart& gpu, InlineExperts* experts);

  /// GPU memory beside the KV pool and the weights.
  static std::uint64_t workspace_bytes(const AttentionServerOptions& options,
                                       const model::ModelSpec& spec);

  /// What the server's waiting kernels read.
  std::uint32_t* abort_word() const { return abort_word_.as<std::uint32_t>(); }
  /// What its kernels test, in device memory.
  layout::AbortState* abort_state() const { return abort_.as<layout::AbortState>(); }

  /// Windows and placement of the epoch that starts; nothing of an earlier one is running. The port
  /// is used until the next one comes.
  Status begin_epoch(transport::DevicePort& port, const ExpertPlacement& placement);

  /// How the plan wants a (step, lane) run.
  struct Shape {
    std::uint32_t bucket = 0;
    bool use_graph = false;
    bool barrier = false;  ///< starts after all that was enqueued before
  };
  /// Enqueues a (step, lane); `batch` is what the table made of the plan.
  Status enqueue(LaneId lane, const LaneBatch& batch, const SequenceTable& sequences,
                 const layout::LaneControl& control, const Shape& shape);

  /// Of a step's HopTimes.
  std::size_t num_waits() const { return std::size_t{waits_per_layer()} * spec_.num_layers; }
  GpuLane& lane(LaneId lane) { return *lanes_[lane]; }
  /// Any thread.
  layout::HopProgress progress(LaneId lane) const {
    return layout::HopProgress::unpack(
        std::atomic_ref(*lanes_[lane]->progress_word()).load(std::memory_order_relaxed));
  }
  /// Blocks until the streams are empty.
  Status synchronize() const;

 private:
  struct Array {
    device::DeviceBuffer GpuRunner::*buffer;
    std::size_t num_bytes;
  };
  /// The memory on the GPU that is neither a lane's nor the KV pool: what the constructor allocates
  /// and workspace_bytes() counts.
  static std::vector<Array> arrays(const AttentionServerOptions& options,
                                   const model::ModelSpec& spec);
  static GpuLaneShape lane_shape(const AttentionServerOptions& options,
                                 const model::ModelSpec& spec);
  static std::size_t history_bytes(const AttentionServerOptions& options);
  static std::uint32_t pages_per_slot(const AttentionServerOptions& options) {
    return (options.max_model_len + options.page_size - 1) / options.page_size;
  }

  /// For combines; of a co-located server for other ranks' dispatches as well, or none.
  std::uint32_t waits_per_layer() const {
    return experts_ == nullptr ? 1 : experts_->has_peers() ? 2 : 0;
  }
  /// Throws DeviceError if waiting kernels could keep the working ones from running.
  void check_residency();
  void capture_graphs();
  std::uint32_t max_samples_of(std::uint32_t bucket) const;
  /// From the embedding to the sampled tokens. Everything that differs between steps of one bucket
  /// is in device memory, but for the lanes that prompt pieces wait for.
  Status run(LaneId lane, std::uint32_t bucket, std::uint32_t max_samples, bool has_pieces);
  Status apply_plan(GpuLane& lane, const LaneBatch& batch, const SequenceTable& sequences);
  Status open_slot(GpuLane& lane, SlotId id, const Slot& slot, GpuSlotState& state);
  Status set_counts(GpuLane& lane, SlotId id, const Slot& slot);
  Status attend(LaneId lane, std::uint32_t layer, std::uint32_t bucket, bool has_pieces);
  Status dispatch(LaneId lane, std::uint32_t layer, std::uint32_t bucket);
  kernels::cuda::RouterParams router_of(std::uint32_t layer) const;
  /// The experts that every token visits, while the others are away.
  Status run_shared_expert(LaneId lane, std::uint32_t layer, std::uint32_t bucket);
  Status receive(LaneId lane, std::uint32_t layer, std::uint32_t bucket, bool sampled,
                 std::uint32_t max_samples);
  Status sample(LaneId lane, std::uint32_t bucket, std::uint32_t max_samples);

  AttentionServerOptions options_;
  transport::DevicePort* port_ = nullptr;  // none yet while graphs are captured
  model::ModelSpec spec_;
  std::shared_ptr<const model::DeviceAttentionWeights> weights_;
  device::GpuPart gpu_;
  InlineExperts* experts_;
  transport::WindowShape window_shape_;
  layout::DispatchLayout dispatch_layout_;
  layout::CombineLayout combine_layout_;
  std::uint32_t pages_per_slot_;
  PieceOrder piece_order_;
  // Made behind the lanes, whose stream they use; never empty afterwards.
  std::optional<GpuFullAttention> full_attention_;
  std::optional<GpuLatentAttention> latent_attention_;
  std::optional<GpuGatedDeltaNet> gated_delta_net_;
  device::DeviceBuffer page_tables_;  // PageId [num_slots, pages_per_slot_]
  device::DeviceBuffer last_tokens_;  // TokenId [num_slots]
  device::DeviceBuffer slot_sampling_;
  device::DeviceBuffer logit_biases_;  // [num_slots, kMaxLogitBiases]
  device::DeviceBuffer stop_tokens_;   // [num_slots, kMaxStopTokens]
  device::DeviceBuffer token_counts_;  // uint32 [num_slots, vocab_size]
  device::DeviceBuffer placement_;     // ExpertPlacement::Target [num_experts]
  device::DeviceBuffer slices_;        // of dense FFNs: ExpertPlacement::Target [num_ffn_servers]
  device::DeviceBuffer dispatch_windows_, combine_windows_;  // std::byte* [num_ffn_servers]
  device::PinnedBuffer epoch_upload_;  // what begin_epoch writes into the four above
  device::DeviceBuffer abort_;         // layout::AbortState
  device::PinnedBuffer abort_word_;    // uint32
  device::DeviceBuffer timeout_ns_;
  std::vector<std::unique_ptr<GpuLane>> lanes_;  // [kMaxLanes]
  // Tokens that a sequence with penalties begins with: so many may be on their way to the GPU
  // before the host must wait for the oldest.
  static constexpr std::uint32_t kNumHistories = 8;
  std::size_t history_bytes_;       // TokenHistory, then TokenId [max_model_len]
  device::PinnedBuffer histories_;  // [kNumHistories][history_bytes_]
  device::DeviceBuffer histories_on_device_;
  std::vector<device::DeviceEvent> history_done_;                               // [kNumHistories]
  std::uint32_t num_histories_ = 0;                                             // so far
  std::array<std::map<std::uint32_t, device::DeviceGraph>, kMaxLanes> graphs_;  // by bucket
};

}  // namespace fastfd::attention_server
