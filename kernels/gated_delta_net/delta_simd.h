#pragma once

#include "kernels/sigmoid_gate/gate_simd.h"
#include "kernels/simd/table.h"
#include "kernels/simd/vec.h"

namespace fastfd::kernels::FASTFD_SIMD {

FASTFD_INLINE Vec silu(Vec x) { return gated(x, x); }

inline void conv_silu(const float* const* taps, std::int64_t num_taps, const float* weight,
                      std::int64_t weight_stride, float* y, std::int64_t num) {
  for (std::int64_t i = 0; i < num; i += kLanes) {
    const bool full = i + kLanes <= num;
    Vec sum = zero();
    for (std::int64_t tap = 0; tap < num_taps; ++tap) {
      const float* x = taps[tap] + i;
      const float* w = weight + tap * weight_stride + i;
      sum = full ? fma(load(x), load(w), sum)
                 : fma(load_partial(x, num - i), load_partial(w, num - i), sum);
    }
    if (full) {
      store(y + i, silu(sum));
    } else {
      store_partial(y + i, silu(sum), num - i);
    }
  }
}

inline void l2_normalize(float* x, std::int64_t num, float eps, float scale) {
  Vec sum = zero();
  std::int64_t i = 0;
  for (; i + kLanes <= num; i += kLanes) {
    const Vec a = load(x + i);
    sum = fma(a, a, sum);
  }
  if (i < num) {
    const Vec a = load_partial(x + i, num - i);
    sum = fma(a, a, sum);
  }
  const Vec factor = set1(scale / __builtin_sqrtf(reduce_add(sum) + eps));
  for (i = 0; i + kLanes <= num; i += kLanes) {
    store(x + i, mul(load(x + i), factor));
  }
  if (i < num) {
    store_partial(x + i, mul(load_partial(x + i, num - i), factor), num - i);
  }
}

inline void silu_gate(const float* gate, float* y, std::int64_t num) {
  std::int64_t i = 0;
  for (; i + kLanes <= num; i += kLanes) {
    store(y + i, mul(load(y + i), silu(load(gate + i))));
  }
  if (i < num) {
    const Vec gated = mul(load_partial(y + i, num - i), silu(load_partial(gate + i, num - i)));
    store_partial(y + i, gated, num - i);
  }
}

inline constexpr int kTileVecs = static_cast<int>(simd::kDeltaColumns) / kLanes;

/// One token's pass over a tile: S = decay * S + k delta^T where the token is not `first`'s
/// predecessor; sums of q^T S and of the next token's k^T S on the way. Every sum runs over the
/// even and the odd keys apart, so that a chain of additions is half as long.
template <bool kUpdate, bool kNext>
FASTFD_INLINE void delta_pass(float* state, std::int64_t k_dim, const float* k, const float* q,
                              const float* next_k, Vec decay, const Vec* delta, Vec* out,
                              Vec* next) {
  constexpr int kV = kTileVecs;
  Vec o[2][kV];
  Vec n[2][kV];
  for (int v = 0; v < kV; ++v) {
    o[0][v] = o[1][v] = n[0][v] = n[1][v] = zero();
  }
  const auto row = [&](std::int64_t i, int parity) __attribute__((always_inline)) {
    float* s = state + i * simd::kDeltaColumns;
    const Vec ki = kUpdate ? set1(k[i]) : zero();
    const Vec qi = kUpdate ? set1(q[i]) : zero();
    const Vec ni = kNext ? set1(next_k[i]) : zero();
    for (int v = 0; v < kV; ++v) {
      Vec x = load(s + v * kLanes);
      if constexpr (kUpdate) {
        x = fma(ki, delta[v], mul(decay, x));
        store(s + v * kLanes, x);
        o[parity][v] = fma(qi, x, o[parity][v]);
      }
      if constexpr (kNext) {
        n[parity][v] = fma(ni, x, n[parity][v]);
      }
    }
  };
  std::int64_t i = 0;
  for (; i + 2 <= k_dim; i += 2) {
    row(i, 0);
    row(i + 1, 1);
  }
  if (i < k_dim) {
    row(i, 0);
  }
  for (int v = 0; v < kV; ++v) {
    if constexpr (kUpdate) {
      out[v] = add(o[0][v], o[1][v]);
    }
    if constexpr (kNext) {
      next[v] = add(n[0][v], n[1][v]);
    }
  }
}

inline void delta_rule(const simd::DeltaTile& tile) {
  Vec predicted[kTileVecs];  // k^T S before the token's decay
  Vec delta[kTileVecs];
  Vec out[kTileVecs];
  const std::int64_t columns = tile.num_columns;
  delta_pass<false, true>(tile.state, tile.k_dim, nullptr, nullptr, tile.k, zero(), nullptr,
                          nullptr, predicted);
  for (std::int64_t t = 0; t < tile.num_rows; ++t) {
    const float* q = tile.q + t * tile.row_stride;
    const float* k = tile.k + t * tile.row_stride;
    const float* value = tile.v + t * tile.row_stride;
    const Vec decay = set1(tile.decay[t]);
    const Vec beta = set1(tile.beta[t]);
    for (int v = 0; v < kTileVecs; ++v) {
      const std::int64_t left = columns - v * kLanes;
      const Vec x = left >= kLanes ? load(value + v * kLanes)
                    : left > 0     ? load_partial(value + v * kLanes, left)
                                   : zero();
      delta[v] = mul(beta, sub(x, mul(decay, predicted[v])));
    }
    if (t + 1 < tile.num_rows) {
      delta_pass<true, true>(tile.state, tile.k_dim, k, q, k + tile.row_stride, decay, delta, out,
                             predicted);
    } else {
      delta_pass<true, false>(tile.state, tile.k_dim, k, q, nullptr, decay, delta, out, nullptr);
    }
    float* y = tile.out + t * tile.out_stride;
    for (int v = 0; v < kTileVecs; ++v) {
      const std::int64_t left = columns - v * kLanes;
      if (left >= kLanes) {
        store(y + v * kLanes, out[v]);
      } else if (left > 0) {
        store_partial(y + v * kLanes, out[v], left);
      }
    }
  }
}

}  // namespace fastfd::kernels::FASTFD_SIMD
