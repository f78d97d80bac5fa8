#pragma once

/// C = A * W^T with bf16 weights packed once at load.

#include <cstdint>
#include <span>

#include "fastfd/core/dtype.h"
#include "fastfd/core/status.h"
#include "fastfd/device/cpu.h"

namespace fastfd::kernels {

/// Rows of W a panel holds. N is padded to a multiple of it, K to a multiple of 2, with zeros.
inline constexpr std::int64_t kPanelRows = 64;

/// Weights [n, k] laid out as [ceil(n/64)][ceil(k/2)][64][2]: the order in which the bf16 dot
/// instructions of AVX-512 read them. Immutable after pack(); share freely between threads.
class PackedWeights {
 public:
  PackedWeights() = default;
  /// Allocates zeros, in `arena` if there is one; fill with pack_rows.
  PackedWeights(std::int64_t n, std::int64_t k, device::HostArena* arena = nullptr);

  /// Packs `source` [num_rows, k] (row stride k) as rows first_row .. first_row + num_rows - 1.
  void pack_rows(std::int64_t first_row, std::int64_t num_rows, const bf16* source);

  /// Row `row` as it was packed, to `out` [k].
  void unpack_row(std::int64_t row, float* out) const;

  std::int64_t n() const { return n_; }
  std::int64_t k() const { return k_; }
  std::int64_t num_panels() const { return (n_ + kPanelRows - 1) / kPanelRows; }
  std::int64_t padded_k() const { return (k_ + 1) / 2 * 2; }
  const bf16* data() const { return buffer_.as<bf16>(); }
  std::size_t num_bytes() const { return buffer_.num_bytes(); }
  std::span<const std::byte> bytes() const { return {buffer_.data(), buffer_.num_bytes()}; }
  /// Element W[row][col] (tests, references).
  bf16 at(std::int64_t row, std::int64_t col) const;

 private:
  std::int64_t n_ = 0;
  std::int64_t k_ = 0;
  device::HostBuffer buffer_;
};

struct GemmParams {
  std::int64_t m = 0;        ///< rows of A and C; 0 is legal
  const float* a = nullptr;  ///< [m, k], row stride lda
  std::int64_t lda = 0;
  const PackedWeights* weights = nullptr;  ///< [n, k]
  float* c = nullptr;                      ///< [m, n], row stride ldc
  std::int64_t ldc = 0;
  bool accumulate = false;      ///< C += A W^T
  const float* bias = nullptr;  ///< [n], added to every row of C; nullptr: none
  Precision precision = Precision::kFloat32;
};

/// The sum of every element of C runs over k in an order that depends on neither m nor the number
/// of threads, so a row's result is bit-equal whoever shares its batch. kBFloat16 rounds A.
Status launch_gemm(const GemmParams& params, const device::CpuStream& stream);

/// Products that don't depend on each other, such as those of attention heads: each is one
/// thread's, and all are shared among the workers.
Status launch_gemm_batch(std::span<const GemmParams> batch, const device::CpuStream& stream);

/// Naive triple loop with float sums in ascending k (kBFloat16: A rounded first). Never optimised.
void reference_gemm(const GemmParams& params);

}  // namespace fastfd::kernels
