#pragma once

#include <cstdint>
#include <vector>

#include "fastfd/core/status.h"
#include "fastfd/device/cpu.h"

namespace fastfd::kernels {

/// How frequencies are changed for contexts longer than the model was trained for.
enum class RopeScaling : std::uint8_t {
  kNone,
  kLinear,  ///< all by 1 / factor
  kYarn,    ///< low ones by 1 / factor, high ones not, a ramp between (arXiv:2309.00071)
  kLlama3,  ///< the same with bounds given as wavelengths (Llama 3.1)
};

/// Rotary position embedding. Fields below `factor` are of the scaling they are named for.
struct RopeParams {
  std::int64_t rotary_dim = 0;  ///< elements of a head that are rotated, even
  double theta = 10000.0;
  RopeScaling scaling = RopeScaling::kNone;
  double factor = 1.0;
  double original_max_positions = 0.0;  ///< kYarn, kLlama3: that the model was trained for
  // kYarn
  double attention_factor = 1.0;  ///< multiplies cos and sin
  double beta_fast = 32.0;        ///< rotations within the original context: more are not scaled,
  double beta_slow = 1.0;         ///< fewer are scaled in full
  bool truncate = true;           ///< the ramp begins and ends at whole dimensions
  // kLlama3
  double low_freq_factor = 1.0;
  double high_freq_factor = 4.0;
};

/// cos and sin of position * theta^(-2i/rotary_dim), scaled, computed as transformers does (float
/// inverse frequencies, float products).
struct RopeTable {
  std::int64_t max_positions = 0;
  std::int64_t rotary_dim = 0;
  std::vector<float> cos;  ///< [max_positions, rotary_dim / 2]
  std::vector<float> sin;  ///< [max_positions, rotary_dim / 2]
  static RopeTable make(std::int64_t max_positions, const RopeParams& params);
  /// kInvalidArgument, naming `op`, for a position that the table doesn't have.
  Status check_positions(const char* op, const std::int32_t* positions,
                         std::int64_t num_rows) const;
};

/// What RMSNorm of q and k spans.
enum class QkNorm : std::uint8_t {
  kNone,
  kPerHead,  ///< each head, with one weight for all
  kWhole,    ///< the heads of q together and those of k together
};

/// In place on the fused projection: RMSNorm of q and k, then rotation of the first rotary_dim
/// elements of each head in the half-split ("NeoX") form.
struct QkNormRopeParams {
  std::int64_t num_rows = 0;
  std::int64_t num_q_heads = 0;
  std::int64_t num_kv_heads = 0;
  std::int64_t head_dim = 0;
  float* qkv = nullptr;  ///< [num_rows, (num_q_heads + 2 num_kv_heads) * head_dim]
  QkNorm norm = QkNorm::kNone;
  const float* q_norm_weight = nullptr;     ///< kPerHead: [head_dim]; kWhole: [q heads * head_dim]
  const float* k_norm_weight = nullptr;     ///< kPerHead: [head_dim]; kWhole: [kv heads * head_dim]
  const std::int32_t* positions = nullptr;  ///< [num_rows]
  const RopeTable* table = nullptr;
  float eps = 1e-6F;
};
Status launch_qk_norm_rope(const QkNormRopeParams& params, const device::CpuStream& stream);
void reference_qk_norm_rope(const QkNormRopeParams& params);

}  // namespace fastfd::kernels
