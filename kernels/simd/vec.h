#pragma once

/// One register of floats, and the few operations the CPU kernels are written in. The width follows
/// the compiler flags of the translation unit, so everything that uses this header lives in the
/// namespace FASTFD_SIMD, whose name differs per instruction set, and calls no inline function of
/// other headers: two units may never share a symbol that was compiled for different machines.

#include <cstdint>

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__) && defined(__AVX512VL__)
#define FASTFD_SIMD_BITS 512
#if defined(__AVX512BF16__)
#define FASTFD_SIMD simd_avx512_bf16
#else
#define FASTFD_SIMD simd_avx512
#endif
#elif defined(__AVX2__) && defined(__FMA__)
#define FASTFD_SIMD_BITS 256
#define FASTFD_SIMD simd_avx2
#else
#define FASTFD_SIMD_BITS 128
#define FASTFD_SIMD simd_scalar
#endif

#if FASTFD_SIMD_BITS > 128
#include <immintrin.h>
#endif

#define FASTFD_INLINE inline __attribute__((always_inline))

namespace fastfd::kernels::FASTFD_SIMD {

using Bf16Bits = std::uint16_t;

#if FASTFD_SIMD_BITS == 512

inline constexpr int kLanes = 16;
/// Accumulators that leave room for operands in the register file.
inline constexpr int kAccumulators = 24;
using Vec = __m512;

FASTFD_INLINE Vec load(const float* p) { return _mm512_loadu_ps(p); }
FASTFD_INLINE void store(float* p, Vec v) { _mm512_storeu_ps(p, v); }
FASTFD_INLINE Vec set1(float x) { return _mm512_set1_ps(x); }
FASTFD_INLINE Vec add(Vec a, Vec b) { return _mm512_add_ps(a, b); }
FASTFD_INLINE Vec sub(Vec a, Vec b) { return _mm512_sub_ps(a, b); }
FASTFD_INLINE Vec mul(Vec a, Vec b) { return _mm512_mul_ps(a, b); }
FASTFD_INLINE Vec div(Vec a, Vec b) { return _mm512_div_ps(a, b); }
FASTFD_INLINE Vec fma(Vec a, Vec b, Vec c) { return _mm512_fmadd_ps(a, b, c); }
FASTFD_INLINE Vec max(Vec a, Vec b) { return _mm512_max_ps(a, b); }
FASTFD_INLINE Vec min(Vec a, Vec b) { return _mm512_min_ps(a, b); }

/// 2 * kLanes bf16 as floats: those of even and of odd index.
FASTFD_INLINE void load_bf16_pairs(const Bf16Bits* p, Vec& even, Vec& odd) {
  const __m512i bits = _mm512_loadu_si512(p);
  even = _mm512_castsi512_ps(_mm512_slli_epi32(bits, 16));
  odd = _mm512_castsi512_ps(_mm512_and_si512(bits, _mm512_set1_epi32(-65536)));
}
FASTFD_INLINE Vec load_bf16(const Bf16Bits* p) {
  const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
}
/// Rounds to nearest even; NaN stays NaN.
FASTFD_INLINE void store_bf16(Bf16Bits* p, Vec v) {
  const __m512i bits = _mm512_castps_si512(v);
  const __m512i lsb = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  __m512i out = _mm512_add_epi32(bits, _mm512_add_epi32(lsb, _mm512_set1_epi32(0x7fff)));
  const __mmask16 nan = _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
  out = _mm512_mask_or_epi32(out, nan, bits, _mm512_set1_epi32(0x400000));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p),
                      _mm512_cvtepi32_epi16(_mm512_srli_epi32(out, 16)));
}
/// Interleaves: a0 b0 a1 b1 ...
FASTFD_INLINE void store_interleaved(float* p, Vec a, Vec b) {
  const __m512i low = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
  const __m512i high =
      _mm512_setr_epi32(8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
  store(p, _mm512_permutex2var_ps(a, low, b));
  store(p + kLanes, _mm512_permutex2var_ps(a, high, b));
}
/// Sums of four registers within 128-bit lanes; every input takes the same path of additions.
FASTFD_INLINE Vec fold4(Vec a, Vec b, Vec c, Vec d) {
  const Vec ab = add(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
  const Vec cd = add(_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d));
  const __m512d x = _mm512_castps_pd(ab);
  const __m512d y = _mm512_castps_pd(cd);
  return add(_mm512_castpd_ps(_mm512_unpacklo_pd(x, y)),
             _mm512_castpd_ps(_mm512_unpackhi_pd(x, y)));
}
/// From kLanes / 4 results of fold4: lane i holds the sum of the i-th register.
FASTFD_INLINE Vec fold_lanes(const Vec* folded) {
  const Vec u = add(_mm512_shuffle_f32x4(folded[0], folded[1], 0x88),
                    _mm512_shuffle_f32x4(folded[0], folded[1], 0xdd));
  const Vec v = add(_mm512_shuffle_f32x4(folded[2], folded[3], 0x88),
                    _mm512_shuffle_f32x4(folded[2], folded[3], 0xdd));
  return add(_mm512_shuffle_f32x4(u, v, 0x88), _mm512_shuffle_f32x4(u, v, 0xdd));
}
/// Bit i: a[i] >= b[i].
FASTFD_INLINE unsigned mask_at_least(Vec a, Vec b) { return _mm512_cmp_ps_mask(a, b, _CMP_GE_OQ); }
/// Bit i: a[i] < b[i] is false, which NaN satisfies.
FASTFD_INLINE unsigned mask_not_less(Vec a, Vec b) { return _mm512_cmp_ps_mask(a, b, _CMP_NLT_UQ); }
/// 0 where x0 < bound, else x (also where x0 is NaN).
FASTFD_INLINE Vec zero_below(Vec x, Vec x0, Vec bound) {
  return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x0, bound, _CMP_NLT_UQ), x);
}
/// a * 2^n where the low mantissa bits of `shifted` hold n (see exp).
FASTFD_INLINE Vec scale_by_bits(Vec a, Vec shifted) {
  const __m512i n = _mm512_slli_epi32(_mm512_castps_si512(shifted), 23);
  return _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(a), n));
}

#elif FASTFD_SIMD_BITS == 256

inline constexpr int kLanes = 8;
inline constexpr int kAccumulators = 8;
using Vec = __m256;

FASTFD_INLINE Vec load(const float* p) { return _mm256_loadu_ps(p); }
FASTFD_INLINE void store(float* p, Vec v) { _mm256_storeu_ps(p, v); }
FASTFD_INLINE Vec set1(float x) { return _mm256_set1_ps(x); }
FASTFD_INLINE Vec add(Vec a, Vec b) { return _mm256_add_ps(a, b); }
FASTFD_INLINE Vec sub(Vec a, Vec b) { return _mm256_sub_ps(a, b); }
FASTFD_INLINE Vec mul(Vec a, Vec b) { return _mm256_mul_ps(a, b); }
FASTFD_INLINE Vec div(Vec a, Vec b) { return _mm256_div_ps(a, b); }
FASTFD_INLINE Vec fma(Vec a, Vec b, Vec c) { return _mm256_fmadd_ps(a, b, c); }
FASTFD_INLINE Vec max(Vec a, Vec b) { return _mm256_max_ps(a, b); }
FASTFD_INLINE Vec min(Vec a, Vec b) { return _mm256_min_ps(a, b); }

FASTFD_INLINE void load_bf16_pairs(const Bf16Bits* p, Vec& even, Vec& odd) {
  const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  even = _mm256_castsi256_ps(_mm256_slli_epi32(bits, 16));
  odd = _mm256_castsi256_ps(_mm256_and_si256(bits, _mm256_set1_epi32(-65536)));
}
FASTFD_INLINE Vec load_bf16(const Bf16Bits* p) {
  const __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
}
FASTFD_INLINE void store_bf16(Bf16Bits* p, Vec v) {
  const __m256i bits = _mm256_castps_si256(v);
  const __m256i lsb = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const __m256i rounded = _mm256_add_epi32(bits, _mm256_add_epi32(lsb, _mm256_set1_epi32(0x7fff)));
  const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
  const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(v, v, _CMP_UNORD_Q));
  const __m256i out = _mm256_srli_epi32(_mm256_blendv_epi8(rounded, quiet, nan), 16);
  const __m128i packed =
      _mm_packus_epi32(_mm256_castsi256_si128(out), _mm256_extracti128_si256(out, 1));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), packed);
}
FASTFD_INLINE void store_interleaved(float* p, Vec a, Vec b) {
  const Vec low = _mm256_unpacklo_ps(a, b);
  const Vec high = _mm256_unpackhi_ps(a, b);
  store(p, _mm256_permute2f128_ps(low, high, 0x20));
  store(p + kLanes, _mm256_permute2f128_ps(low, high, 0x31));
}
FASTFD_INLINE Vec fold4(Vec a, Vec b, Vec c, Vec d) {
  const Vec ab = add(_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b));
  const Vec cd = add(_mm256_unpacklo_ps(c, d), _mm256_unpackhi_ps(c, d));
  const __m256d x = _mm256_castps_pd(ab);
  const __m256d y = _mm256_castps_pd(cd);
  return add(_mm256_castpd_ps(_mm256_unpacklo_pd(x, y)),
             _mm256_castpd_ps(_mm256_unpackhi_pd(x, y)));
}
FASTFD_INLINE Vec fold_lanes(const Vec* folded) {
  return add(_mm256_permute2f128_ps(folded[0], folded[1], 0x20),
             _mm256_permute2f128_ps(folded[0], folded[1], 0x31));
}
FASTFD_INLINE unsigned mask_at_least(Vec a, Vec b) {
  return static_cast<unsigned>(_mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_GE_OQ)));
}
FASTFD_INLINE unsigned mask_not_less(Vec a, Vec b) {
  return static_cast<unsigned>(_mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_NLT_UQ)));
}
FASTFD_INLINE Vec zero_below(Vec x, Vec x0, Vec bound) {
  return _mm256_and_ps(x, _mm256_cmp_ps(x0, bound, _CMP_NLT_UQ));
}
FASTFD_INLINE Vec scale_by_bits(Vec a, Vec shifted) {
  const __m256i n = _mm256_slli_epi32(_mm256_castps_si256(shifted), 23);
  return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(a), n));
}

#else

inline constexpr int kLanes = 4;
inline constexpr int kAccumulators = 8;
using Vec = float __attribute__((vector_size(16)));
using VecU = std::uint32_t __attribute__((vector_size(16)));
using VecI = std::int32_t __attribute__((vector_size(16)));

FASTFD_INLINE Vec load(const float* p) {
  Vec v;
  __builtin_memcpy(&v, p, sizeof(v));
  return v;
}
FASTFD_INLINE void store(float* p, Vec v) { __builtin_memcpy(p, &v, sizeof(v)); }
FASTFD_INLINE Vec set1(float x) { return Vec{x, x, x, x}; }
FASTFD_INLINE Vec add(Vec a, Vec b) { return a + b; }
FASTFD_INLINE Vec sub(Vec a, Vec b) { return a - b; }
FASTFD_INLINE Vec mul(Vec a, Vec b) { return a * b; }
FASTFD_INLINE Vec div(Vec a, Vec b) { return a / b; }
FASTFD_INLINE Vec fma(Vec a, Vec b, Vec c) { return a * b + c; }
/// Lanes of a where the mask is all ones, else of b.
FASTFD_INLINE Vec select(VecI mask, Vec a, Vec b) {
  const VecU m = (VecU)mask;
  return (Vec)(((VecU)a & m) | ((VecU)b & ~m));
}
FASTFD_INLINE Vec max(Vec a, Vec b) { return select(a > b, a, b); }
FASTFD_INLINE Vec min(Vec a, Vec b) { return select(a < b, a, b); }

FASTFD_INLINE void load_bf16_pairs(const Bf16Bits* p, Vec& even, Vec& odd) {
  VecU bits;
  __builtin_memcpy(&bits, p, sizeof(bits));
  even = (Vec)(bits << 16);
  odd = (Vec)(bits & 0xffff0000U);
}
FASTFD_INLINE Vec load_bf16(const Bf16Bits* p) {
  const VecU bits = {p[0], p[1], p[2], p[3]};
  return (Vec)(bits << 16);
}
FASTFD_INLINE void store_bf16(Bf16Bits* p, Vec v) {
  const VecU bits = (VecU)v;
  const VecU rounded = bits + (0x7fffU + ((bits >> 16) & 1U));
  const VecU out = (VecU)select(v == v, (Vec)rounded, (Vec)(bits | 0x400000U)) >> 16;
  for (int i = 0; i < kLanes; ++i) {
    p[i] = static_cast<Bf16Bits>(out[i]);
  }
}
FASTFD_INLINE void store_interleaved(float* p, Vec a, Vec b) {
  store(p, __builtin_shufflevector(a, b, 0, 4, 1, 5));
  store(p + kLanes, __builtin_shufflevector(a, b, 2, 6, 3, 7));
}
FASTFD_INLINE Vec fold4(Vec a, Vec b, Vec c, Vec d) {
  const Vec ab =
      add(__builtin_shufflevector(a, b, 0, 4, 1, 5), __builtin_shufflevector(a, b, 2, 6, 3, 7));
  const Vec cd =
      add(__builtin_shufflevector(c, d, 0, 4, 1, 5), __builtin_shufflevector(c, d, 2, 6, 3, 7));
  return add(__builtin_shufflevector(ab, cd, 0, 1, 4, 5),
             __builtin_shufflevector(ab, cd, 2, 3, 6, 7));
}
FASTFD_INLINE Vec fold_lanes(const Vec* folded) { return folded[0]; }
FASTFD_INLINE unsigned lane_bits(VecI mask) {
  return (mask[0] != 0 ? 1U : 0U) | (mask[1] != 0 ? 2U : 0U) | (mask[2] != 0 ? 4U : 0U) |
         (mask[3] != 0 ? 8U : 0U);
}
FASTFD_INLINE unsigned mask_at_least(Vec a, Vec b) { return lane_bits(a >= b); }
FASTFD_INLINE unsigned mask_not_less(Vec a, Vec b) { return lane_bits(~(a < b)); }
FASTFD_INLINE Vec zero_below(Vec x, Vec x0, Vec bound) { return select(x0 < bound, set1(0), x); }
FASTFD_INLINE Vec scale_by_bits(Vec a, Vec shifted) {
  return (Vec)((VecU)a + ((VecU)shifted << 23));
}

#endif

FASTFD_INLINE Vec zero() { return set1(0.0F); }

/// The sum of all lanes, in a fixed order.
FASTFD_INLINE float reduce_add(Vec v) {
  float lanes[kLanes];
  store(lanes, v);
  for (int width = kLanes / 2; width > 0; width /= 2) {
    for (int i = 0; i < width; ++i) {
      lanes[i] += lanes[i + width];
    }
  }
  return lanes[0];
}

FASTFD_INLINE float reduce_max(Vec v) {
  float lanes[kLanes];
  store(lanes, v);
  for (int width = kLanes / 2; width > 0; width /= 2) {
    for (int i = 0; i < width; ++i) {
      lanes[i] = lanes[i] > lanes[i + width] ? lanes[i] : lanes[i + width];
    }
  }
  return lanes[0];
}

/// First `count` < kLanes floats; the other lanes hold `fill`.
FASTFD_INLINE Vec load_partial(const float* p, std::int64_t count, float fill = 0.0F) {
  float lanes[kLanes];
  for (int i = 0; i < kLanes; ++i) {
    lanes[i] = i < count ? p[i] : fill;
  }
  return load(lanes);
}
FASTFD_INLINE void store_partial(float* p, Vec v, std::int64_t count) {
  float lanes[kLanes];
  store(lanes, v);
  for (int i = 0; i < kLanes && i < count; ++i) {
    p[i] = lanes[i];
  }
}
FASTFD_INLINE Vec load_bf16_partial(const Bf16Bits* p, std::int64_t count) {
  Bf16Bits lanes[kLanes] = {};
  for (int i = 0; i < kLanes && i < count; ++i) {
    lanes[i] = p[i];
  }
  return load_bf16(lanes);
}
FASTFD_INLINE void store_bf16_partial(Bf16Bits* p, Vec v, std::int64_t count) {
  Bf16Bits lanes[kLanes];
  store_bf16(lanes, v);
  for (int i = 0; i < kLanes && i < count; ++i) {
    p[i] = lanes[i];
  }
}

/// e^x to about 1e-7 relative (Cephes expf: range reduction by ln 2 in two parts, degree-5
/// polynomial). Below -87.3 exactly 0; above 88.37 the value at 88.37, so never infinity. NaN stays
/// NaN: the operands of max and min stand in the order that lets it pass.
FASTFD_INLINE Vec exp(Vec x) {
  const Vec low = set1(-87.3365447F);
  const Vec clamped = min(set1(88.3762626F), max(low, x));
  const Vec magic = set1(12582912.0F);  // 1.5 * 2^23: adding it rounds to an integer
  const Vec shifted = fma(clamped, set1(1.44269504F), magic);
  const Vec n = sub(shifted, magic);
  Vec r = fma(n, set1(-0.693359375F), clamped);
  r = fma(n, set1(2.12194440e-4F), r);
  Vec p = set1(1.9875691500e-4F);
  p = fma(p, r, set1(1.3981999507e-3F));
  p = fma(p, r, set1(8.3334519073e-3F));
  p = fma(p, r, set1(4.1665795894e-2F));
  p = fma(p, r, set1(1.6666665459e-1F));
  p = fma(p, r, set1(5.0000001201e-1F));
  p = add(fma(p, mul(r, r), r), set1(1.0F));
  return zero_below(scale_by_bits(p, shifted), x, low);
}

}  // namespace fastfd::kernels::FASTFD_SIMD
