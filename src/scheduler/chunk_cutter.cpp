#include "scheduler/chunk_cutter.h"

#include <algorithm>
#include <cmath>

namespace fastfd::scheduler {
namespace {

/// Shorter pieces are not worth a lane of their own.
constexpr std::uint32_t kMinPieceTokens = 2;

LaneWork work_of(const Chunk& chunk) {
  const double n = chunk.num_tokens;
  return {n, n * (chunk.start + n / 2)};
}

}  // namespace

const std::vector<Piece>& ChunkCutter::cut(std::span<const Chunk> chunks, const LaneTable& lanes,
                                           std::uint32_t num_lanes, const CostModel& cost) {
  pieces_.clear();
  set_quotas(chunks, lanes, num_lanes, cost);
  choose_homes(chunks, lanes, num_lanes);
  // Chunks with the least choice first: those that must end in lane 0 have lane 0 only. Inner
  // chunks (which may end anywhere) come last and level what is left.
  for (LaneId home = 0; home < num_lanes; ++home) {
    for (std::size_t i = 0; i < chunks.size(); ++i) {
      if (chunks[i].ends_prompt && homes_[i] == home) {
        place(chunks[i], home, cost);
      }
    }
  }
  for (const Chunk& chunk : chunks) {
    if (!chunk.ends_prompt) {
      place(chunk, num_lanes - 1, cost);
    }
  }
  std::stable_sort(pieces_.begin(), pieces_.end(),
                   [](const Piece& a, const Piece& b) { return a.lane < b.lane; });
  return pieces_;
}

/// Water-filling: the level to which the prompts' time lifts the lanes, shortest first.
void ChunkCutter::set_quotas(std::span<const Chunk> chunks, const LaneTable& lanes,
                             std::uint32_t num_lanes, const CostModel& cost) {
  double to_pour = 0;
  for (const Chunk& chunk : chunks) {
    to_pour += cost.marginal(work_of(chunk));
  }
  std::array<double, kMaxLanes> base{};
  for (LaneId b = 0; b < num_lanes; ++b) {
    base[b] = cost.marginal(lanes.work(b));
  }
  auto sorted = base;
  std::sort(sorted.begin(), sorted.begin() + num_lanes);
  double level = 0;
  double sum = 0;
  for (std::uint32_t n = 1; n <= num_lanes; ++n) {
    sum += sorted[n - 1];
    level = (to_pour + sum) / n;
    if (n == num_lanes || level <= sorted[n]) {
      break;
    }
  }
  quota_.fill(0);
  for (LaneId b = 0; b < num_lanes; ++b) {
    quota_[b] = std::max(0.0, level - base[b]);
  }
}

/// A prompt that ends in the last lane can be cut over all of them, so the last lane is preferred
/// while it is not ahead of the emptiest one by more than an eighth of a lane's rows.
void ChunkCutter::choose_homes(std::span<const Chunk> chunks, const LaneTable& lanes,
                               std::uint32_t num_lanes) {
  std::array<std::size_t, kMaxLanes> rows{};
  std::size_t total = 0;
  for (LaneId b = 0; b < num_lanes; ++b) {
    rows[b] = lanes.lane(b).rows.size();
    total += rows[b];
  }
  homes_.assign(chunks.size(), num_lanes - 1);
  for (std::size_t i = 0; i < chunks.size(); ++i) {
    if (!chunks[i].ends_prompt) {
      continue;
    }
    const std::size_t slack = total / num_lanes / 8;
    const std::size_t fewest = *std::min_element(rows.begin(), rows.begin() + num_lanes);
    LaneId home = num_lanes - 1;
    while (rows[home] > fewest + slack) {
      --home;
    }
    homes_[i] = home;
    ++rows[home];
    ++total;
  }
}

/// Fills from `last_lane` down, by quota, and what no quota takes stays in `last_lane`.
void ChunkCutter::place(const Chunk& chunk, LaneId last_lane, const CostModel& cost) {
  const double token_time = cost.marginal(work_of(chunk)) / chunk.num_tokens;
  std::array<std::uint32_t, kMaxLanes> take{};
  std::uint32_t left = chunk.num_tokens;
  for (LaneId lane = last_lane + 1; lane > 0 && left > 0; --lane) {
    const LaneId b = lane - 1;
    auto wanted = static_cast<std::uint32_t>(std::lround(std::max(0.0, quota_[b] / token_time)));
    wanted = std::min(wanted, left);
    if (b == last_lane && chunk.ends_prompt) {
      wanted = std::max(wanted, std::min(left, kMinPieceTokens));
    } else if (wanted < kMinPieceTokens) {
      continue;
    }
    // A rest too short for a lane of its own stays here.
    take[b] = left - wanted < kMinPieceTokens ? left : wanted;
    left -= take[b];
  }
  take[last_lane] += left;
  std::uint32_t position = chunk.start;
  const std::uint32_t end = chunk.start + chunk.num_tokens;
  for (LaneId b = 0; b <= last_lane; ++b) {
    if (take[b] == 0) {
      continue;
    }
    quota_[b] -= take[b] * token_time;
    position += take[b];
    pieces_.push_back(
        {chunk.sequence, b, position - take[b], take[b], chunk.ends_prompt && position == end});
  }
}

}  // namespace fastfd::scheduler
