#pragma once

#include <atomic>
#include <cstdint>
#include <span>
#include <vector>

#include "fastfd/core/dtype.h"
#include "fastfd/core/status.h"
#include "fastfd/device/cpu.h"
#include "kernels/gemm/op.h"

namespace fastfd::kernels {

/// How gate and up become a hidden unit.
enum class GatedActivation : std::uint8_t {
  kSwiglu,         ///< silu(gate) * up
  kClampedSwiglu,  ///< gate * sigmoid(alpha * gate) * (up + 1), both clamped (gpt-oss)
};

struct ActivationRule {
  GatedActivation kind = GatedActivation::kSwiglu;
  // kClampedSwiglu
  float alpha = 1.702F;
  float limit = 7.0F;  ///< gate is at most that, up within +-that; positive
};

/// One expert: down(activation(gate(x), up(x))).
struct ExpertWeights {
  /// [2 * intermediate_dim, hidden_dim]; gate and up rows interleaved in blocks of 32 (gate rows
  /// 0..31, up rows 0..31, gate rows 32..63, ...), so that one 64-row panel holds both halves of 32
  /// hidden units and SwiGLU runs in the epilogue. intermediate_dim is padded to a multiple of 32.
  PackedWeights gate_up;
  PackedWeights down;               ///< [hidden_dim, padded intermediate_dim]
  std::vector<float> gate_up_bias;  ///< of the rows of gate_up, in their order, or empty
  std::vector<float> down_bias;     ///< [hidden_dim] or empty; a route's weight is its weight, too

  /// Packs from row-major bf16: gate and up [intermediate_dim, hidden_dim], down [hidden_dim,
  /// intermediate_dim]. Allocates in `arena` if there is one.
  static ExpertWeights pack(const bf16* gate, const bf16* up, const bf16* down,
                            std::int64_t hidden_dim, std::int64_t intermediate_dim,
                            device::HostArena* arena = nullptr);
  /// [intermediate_dim], [intermediate_dim], [hidden_dim].
  void set_biases(std::span<const float> of_gate, std::span<const float> of_up,
                  std::span<const float> of_down);
};

/// For each token: out = sum over its routes, in ascending local expert order, of weight *
/// expert(token). Tokens are read where they lie (the peers' dispatch windows) and results stored
/// where they are wanted (the peers' combine windows); rows are not copied per route.
struct ExpertFfnParams {
  std::int64_t num_tokens = 0;
  std::int64_t hidden_dim = 0;
  std::int64_t intermediate_dim = 0;
  const void* const* token_rows = nullptr;       ///< [num_tokens] -> [hidden_dim] of token_dtype
  DType token_dtype = DType::kFloat32;           ///< kFloat32 or kBFloat16
  const std::uint32_t* route_offsets = nullptr;  ///< [num_tokens + 1], ascending from 0
  const std::uint32_t* route_experts = nullptr;  ///< [num_routes] local expert ids
  const float* route_weights = nullptr;          ///< [num_routes]
  std::span<const ExpertWeights> experts;
  ActivationRule activation{};
  void* const* out_rows = nullptr;    ///< [num_tokens] -> [hidden_dim] of out_dtype
  DType out_dtype = DType::kFloat32;  ///< kFloat32 or kBFloat16; sums are float
  Precision precision = Precision::kFloat32;
  /// Polled at least every 64 rows; true ends the launch with kAborted. nullptr: never.
  const std::atomic<bool>* abort = nullptr;
};

/// Reusable memory of launch_expert_ffn: grows on first use, so the hot path allocates nothing.
/// One per calling thread.
class ExpertFfnScratch {
 public:
  ExpertFfnScratch();
  ~ExpertFfnScratch();
  ExpertFfnScratch(ExpertFfnScratch&&) noexcept;
  ExpertFfnScratch& operator=(ExpertFfnScratch&&) noexcept;
  struct Impl;
  Impl& impl() { return *impl_; }

 private:
  Impl* impl_;
};

/// Work only for experts that have tokens. A token's result does not depend on the others. An
/// expert id outside `experts` is kInvalidArgument and nothing is stored.
Status launch_expert_ffn(const ExpertFfnParams& params, ExpertFfnScratch& scratch,
                         const device::CpuStream& stream);
void reference_expert_ffn(const ExpertFfnParams& params);

}  // namespace fastfd::kernels
