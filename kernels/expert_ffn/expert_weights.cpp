#include <algorithm>
#include <vector>

#include "kernels/expert_ffn/op.h"

namespace fastfd::kernels {
namespace {
constexpr std::int64_t kHalfPanel = kPanelRows / 2;
}

ExpertWeights ExpertWeights::pack(const bf16* gate, const bf16* up, const bf16* down,
                                  std::int64_t hidden_dim, std::int64_t intermediate_dim,
                                  device::HostArena* arena) {
  const std::int64_t num_blocks = (intermediate_dim + kHalfPanel - 1) / kHalfPanel;
  const std::int64_t padded = num_blocks * kHalfPanel;
  ExpertWeights weights;
  weights.gate_up = PackedWeights(2 * padded, hidden_dim, arena);
  for (std::int64_t block = 0; block < num_blocks; ++block) {
    const std::int64_t first = block * kHalfPanel;
    const std::int64_t num_rows = std::min(kHalfPanel, intermediate_dim - first);
    weights.gate_up.pack_rows(block * kPanelRows, num_rows, gate + first * hidden_dim);
    weights.gate_up.pack_rows(block * kPanelRows + kHalfPanel, num_rows, up + first * hidden_dim);
  }
  weights.down = PackedWeights(hidden_dim, padded, arena);
  std::vector<bf16> row(static_cast<std::size_t>(padded), bf16{0});
  for (std::int64_t i = 0; i < hidden_dim; ++i) {
    std::copy_n(down + i * intermediate_dim, intermediate_dim, row.begin());
    weights.down.pack_rows(i, 1, row.data());
  }
  return weights;
}

void ExpertWeights::set_biases(std::span<const float> of_gate, std::span<const float> of_up,
                               std::span<const float> of_down) {
  gate_up_bias.assign(static_cast<std::size_t>(gate_up.n()), 0.0F);
  constexpr auto kHalf = static_cast<std::size_t>(kHalfPanel);
  for (std::size_t unit = 0; unit < of_gate.size(); ++unit) {
    const std::size_t row = unit / kHalf * 2 * kHalf + unit % kHalf;
    gate_up_bias[row] = of_gate[unit];
    gate_up_bias[row + kHalf] = of_up[unit];
  }
  down_bias.assign(of_down.begin(), of_down.end());
}

}  // namespace fastfd::kernels
