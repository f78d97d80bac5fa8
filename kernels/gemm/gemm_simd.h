#pragma once

/// GEMM over packed weights. A tile of rows x columns stays in registers while k runs from first to
/// last, so the sum of an element has one order whatever the tile; tile shapes only decide how
/// often weights and activations are read.

#include "kernels/simd/table.h"
#include "kernels/simd/vec.h"

namespace fastfd::kernels::FASTFD_SIMD {

inline constexpr std::int64_t kPanelColumns = 64;
inline constexpr int kPanelVecs = kPanelColumns / kLanes;
/// Rows of the widest tile.
inline constexpr int kTileRows = kLanes < 16 ? 4 : 6;

/// Registers of columns in a tile of `rows` rows: as many as the accumulators allow.
constexpr int tile_vecs(int rows) {
  int vecs = 1;
  while (2 * vecs * rows <= kAccumulators && 2 * vecs <= 8) {
    vecs *= 2;
  }
  return vecs;
}

/// One product step of a tile: floats with FMA, even k first.
struct FloatStep {
  using Element = float;
  template <int kRows, int kVecs>
  static FASTFD_INLINE void pair(const float* const* a, std::int64_t k, const Bf16Bits* w,
                                 const std::int64_t (&offsets)[kVecs], Vec (&acc)[kRows][kVecs]) {
    if constexpr (kRows * kVecs + 2 * kVecs < 2 * kLanes) {
      // The weights of the step fit beside the sums: each activation is broadcast once.
      Vec even[kVecs];
      Vec odd[kVecs];
#pragma GCC unroll 8
      for (int v = 0; v < kVecs; ++v) {
        load_bf16_pairs(w + offsets[v], even[v], odd[v]);
      }
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
        const Vec first = set1(a[r][k]);
        const Vec second = set1(a[r][k + 1]);
#pragma GCC unroll 8
        for (int v = 0; v < kVecs; ++v) {
          acc[r][v] = fma(second, odd[v], fma(first, even[v], acc[r][v]));
        }
      }
    } else {
#pragma GCC unroll 8
      for (int v = 0; v < kVecs; ++v) {
        Vec even;
        Vec odd;
        load_bf16_pairs(w + offsets[v], even, odd);
#pragma GCC unroll 8
        for (int r = 0; r < kRows; ++r) {
          acc[r][v] = fma(set1(a[r][k]), even, acc[r][v]);
          acc[r][v] = fma(set1(a[r][k + 1]), odd, acc[r][v]);
        }
      }
    }
  }
  /// The last k of an odd count: rows end here.
  template <int kRows, int kVecs>
  static FASTFD_INLINE void single(const float* const* a, std::int64_t k, const Bf16Bits* w,
                                   const std::int64_t (&offsets)[kVecs], Vec (&acc)[kRows][kVecs]) {
    for (int v = 0; v < kVecs; ++v) {
      Vec even;
      Vec odd;
      load_bf16_pairs(w + offsets[v], even, odd);
      for (int r = 0; r < kRows; ++r) {
        acc[r][v] = fma(set1(a[r][k]), even, acc[r][v]);
      }
    }
  }
};

#if defined(__AVX512BF16__)
/// bf16 dot products of pairs; rows are padded to an even k with zeros.
struct Bf16Step {
  using Element = Bf16Bits;
  template <int kRows, int kVecs>
  static FASTFD_INLINE void pair(const Bf16Bits* const* a, std::int64_t k, const Bf16Bits* w,
                                 const std::int64_t (&offsets)[kVecs], Vec (&acc)[kRows][kVecs]) {
    __m512bh weights[kVecs];
#pragma GCC unroll 8
    for (int v = 0; v < kVecs; ++v) {
      weights[v] = (__m512bh)_mm512_loadu_si512(w + offsets[v]);
    }
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      std::int32_t bits;
      __builtin_memcpy(&bits, a[r] + k, sizeof(bits));
      const __m512bh x = (__m512bh)_mm512_set1_epi32(bits);
#pragma GCC unroll 8
      for (int v = 0; v < kVecs; ++v) {
        acc[r][v] = _mm512_dpbf16_ps(acc[r][v], x, weights[v]);
      }
    }
  }
  template <int kRows, int kVecs>
  static FASTFD_INLINE void single(const Bf16Bits* const* a, std::int64_t k, const Bf16Bits* w,
                                   const std::int64_t (&offsets)[kVecs], Vec (&acc)[kRows][kVecs]) {
    pair<kRows, kVecs>(a, k, w, offsets, acc);
  }
};
#endif

/// Fetches a coming panel into the second-level cache, a few cache lines a step of k: the first
/// rows that pass over a panel would wait for memory, those that follow leave it idle.
struct PanelFetch {
  const Bf16Bits* at = nullptr;
  int lines = 0;  ///< a step: 0, 2 or 4 of the 4 that a step reads

  FASTFD_INLINE void step() {
    constexpr int kLineElements = 32;
    if (lines == 0) {
      return;
    }
    __builtin_prefetch(at, 0, 2);
    __builtin_prefetch(at + kLineElements, 0, 2);
    if (lines == 4) {
      __builtin_prefetch(at + 2 * kLineElements, 0, 2);
      __builtin_prefetch(at + 3 * kLineElements, 0, 2);
    }
    at += lines * kLineElements;
  }
};

/// kRows x (kVecs * kLanes) elements of C from `column` on; the last `columns` of a register that C
/// does not have are not stored.
template <typename Step, int kRows, int kVecs>
void gemm_tile(const simd::GemmPanels& p, std::int64_t row, std::int64_t column,
               std::int64_t columns, PanelFetch fetch) {
  const std::int64_t panel_stride = (p.k + 1) / 2 * 2 * kPanelColumns;
  const Bf16Bits* w =
      p.weights + column / kPanelColumns * panel_stride + column % kPanelColumns * 2;
  std::int64_t offsets[kVecs];
  for (int v = 0; v < kVecs; ++v) {
    offsets[v] = v / kPanelVecs * panel_stride + v % kPanelVecs * 2 * kLanes;
  }
  const typename Step::Element* a[kRows];
  for (int r = 0; r < kRows; ++r) {
    a[r] = static_cast<const typename Step::Element*>(p.rows[row + r]);
  }
  Vec acc[kRows][kVecs];
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVecs; ++v) {
      acc[r][v] = zero();
    }
  }
  std::int64_t k = 0;
  for (; k + 2 <= p.k; k += 2, w += 2 * kPanelColumns) {
    Step::template pair<kRows, kVecs>(a, k, w, offsets, acc);
    fetch.step();
  }
  if (k < p.k) {
    Step::template single<kRows, kVecs>(a, k, w, offsets, acc);
  }
  for (int r = 0; r < kRows; ++r) {
    float* c = p.c + (row + r) * p.ldc + column;
    for (int v = 0; v < kVecs; ++v, c += kLanes) {
      if (columns < kVecs * kLanes) {
        const Vec old = p.accumulate ? load_partial(c, columns) : zero();
        store_partial(c, p.accumulate ? add(old, acc[r][v]) : acc[r][v], columns);
      } else {
        store(c, p.accumulate ? add(load(c), acc[r][v]) : acc[r][v]);
      }
    }
  }
}

/// Columns [column, end) of kRows rows, in tiles of kVecs registers and then of fewer. The first
/// tile fetches.
template <typename Step, int kRows, int kVecs>
void gemm_strips(const simd::GemmPanels& p, std::int64_t row, std::int64_t column, std::int64_t end,
                 PanelFetch fetch) {
  for (; column + kVecs * kLanes <= end; column += kVecs * kLanes) {
    gemm_tile<Step, kRows, kVecs>(p, row, column, kVecs * kLanes, fetch);
    fetch = {};
  }
  if constexpr (kVecs > 1) {
    gemm_strips<Step, kRows, kVecs / 2>(p, row, column, end, fetch);
  } else if (column < end) {
    gemm_tile<Step, kRows, 1>(p, row, column, end - column, fetch);
  }
}

template <typename Step, int kRows>
void gemm_rows(const simd::GemmPanels& p, std::int64_t row, std::int64_t num_rows,
               std::int64_t column, std::int64_t end, PanelFetch fetch) {
  if (num_rows == kRows) {
    gemm_strips<Step, kRows, tile_vecs(kRows)>(p, row, column, end, fetch);
  } else if constexpr (kRows > 1) {
    gemm_rows<Step, kRows - 1>(p, row, num_rows, column, end, fetch);
  }
}

/// What the row tile from `row` on fetches of the panel at `next`: the tiles after the first share
/// the work.
inline PanelFetch fetch_for(const simd::GemmPanels& p, const Bf16Bits* next, std::int64_t row) {
  const std::int64_t num_tiles = (p.num_rows + kTileRows - 1) / kTileRows;
  const std::int64_t tile = row / kTileRows - 1;
  if (next == nullptr || tile < 0 || tile > 1) {
    return {};
  }
  if (num_tiles == 2) {
    return {next, 4};
  }
  return {next + tile * p.k / 2 / 2 * 2 * kPanelColumns, 2};
}

template <typename Step>
void gemm_panels(const simd::GemmPanels& p) {
  // Few rows: two panels at a time give enough independent sums. Many: one panel stays in cache
  // while all rows pass over it.
  const std::int64_t group = p.num_rows <= 3 ? 2 * kPanelColumns : kPanelColumns;
  for (std::int64_t column = 0; column < p.num_columns; column += group) {
    const std::int64_t end = column + group < p.num_columns ? column + group : p.num_columns;
    const Bf16Bits* next =
        end < p.num_columns ? p.weights + end / kPanelColumns * ((p.k + 1) / 2 * 2 * kPanelColumns)
                            : p.next;
    for (std::int64_t row = 0; row < p.num_rows; row += kTileRows) {
      const std::int64_t rows = p.num_rows - row < kTileRows ? p.num_rows - row : kTileRows;
      gemm_rows<Step, kTileRows>(p, row, rows, column, end, fetch_for(p, next, row));
    }
  }
}

inline void gemm_f32(const simd::GemmPanels& p) { gemm_panels<FloatStep>(p); }
#if defined(__AVX512BF16__)
inline void gemm_bf16(const simd::GemmPanels& p) { gemm_panels<Bf16Step>(p); }
#endif

}  // namespace fastfd::kernels::FASTFD_SIMD
