#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "scheduler/cost_model.h"
#include "scheduler/lanes.h"
#include "scheduler/sequence.h"

namespace fastfd::scheduler {

/// Prompt tokens of one sequence in one step.
struct Chunk {
  Sequence* sequence = nullptr;
  std::uint32_t start = 0;
  std::uint32_t num_tokens = 0;
  bool ends_prompt = false;
};

/// The part of a chunk that one lane runs.
struct Piece {
  Sequence* sequence = nullptr;
  LaneId lane = 0;
  std::uint32_t start = 0;
  std::uint32_t num_tokens = 0;
  bool samples = false;
};

/// Cuts the chunks of one attention server over its lanes: predicted lane times come out
/// equal, a chunk's pieces ascend with the lanes, and where a prompt ends, so that its decode row
/// will live there, decode rows stay evenly dealt. Keeps scratch memory between calls.
class ChunkCutter {
 public:
  /// Pieces in the order of their lanes; valid until the next call. The span is not kept.
  const std::vector<Piece>& cut(std::span<const Chunk> chunks, const LaneTable& lanes,
                                std::uint32_t num_lanes, const CostModel& cost);

 private:
  void set_quotas(std::span<const Chunk> chunks, const LaneTable& lanes, std::uint32_t num_lanes,
                  const CostModel& cost);
  void choose_homes(std::span<const Chunk> chunks, const LaneTable& lanes, std::uint32_t num_lanes);
  void place(const Chunk& chunk, LaneId last_lane, const CostModel& cost);

  std::array<double, kMaxLanes> quota_{};  ///< prompt time that each lane should still get
  std::vector<LaneId> homes_;              ///< [num chunks]; where the chunk ends
  std::vector<Piece> pieces_;
};

}  // namespace fastfd::scheduler
