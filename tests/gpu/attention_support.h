#pragma once

/// Paged KV pools with random contents for tests and benchmarks of the GPU's attention, and the
/// same contents as the CPU reference reads them.

#include <cuda_fp8.h>

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <random>
#include <vector>

#include "device_array.h"
#include "fastfd/core/dtype.h"
#include "kernels/attention/op.h"
#include "kernels/layout/lane_batch.h"
#include "support/random_values.h"

namespace fastfd::testing {

using test::random_floats;
using test::to_bf16;
using test::to_floats;

/// Rows of several sequences: a piece, decode rows, the first and the last of 300 positions.
inline std::vector<layout::LaneRow> make_rows() {
  std::vector<layout::LaneRow> rows;
  for (std::uint32_t position = 10; position < 40; ++position) {
    rows.push_back({.slot = 1, .position = position});
  }
  rows.push_back({.slot = 2, .position = 299});
  rows.push_back({.slot = 0, .position = 0});
  return rows;
}

inline std::uint8_t to_e4m3(float value) {
  return __nv_cvt_float_to_fp8(value, __NV_SATFINITE, __NV_E4M3);
}

inline float from_e4m3(std::uint8_t bits) {
  const __half_raw half = __nv_cvt_fp8_to_halfraw(bits, __NV_E4M3);
  return __half2float(__half(half));
}

/// `value` as a pool of that type returns it.
inline float round_to(DType dtype, float value, float scale) {
  return dtype == DType::kBFloat16 ? bf16::from_float(value).to_float()
                                   : from_e4m3(to_e4m3(value / scale)) * scale;
}

/// Bytes of a pool with these numbers.
inline std::vector<std::uint8_t> to_pool_bytes(DType dtype, const std::vector<float>& values,
                                               float scale) {
  std::vector<std::uint8_t> bytes(values.size() * dtype_bytes(dtype));
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (dtype == DType::kBFloat16) {
      const std::uint16_t bits = bf16::from_float(values[i]).bits;
      bytes[2 * i] = static_cast<std::uint8_t>(bits);
      bytes[2 * i + 1] = static_cast<std::uint8_t>(bits >> 8);
    } else {
      bytes[i] = to_e4m3(values[i] / scale);
    }
  }
  return bytes;
}

struct KvShape {
  std::int64_t num_q_heads = 0;
  std::int64_t num_kv_heads = 0;
  std::int64_t head_dim = 0;
  std::int64_t page_size = 0;
  DType dtype = DType::kBFloat16;

  std::int64_t row_dim() const { return (num_q_heads + 2 * num_kv_heads) * head_dim; }
  std::int64_t out_dim() const { return num_q_heads * head_dim; }
};

/// Page tables of `num_slots` sequences whose pages are scattered over a pool.
struct ScatteredPages {
  std::int64_t pages_per_slot;
  std::vector<PageId> tables;  ///< [num_slots, pages_per_slot]

  ScatteredPages(std::int64_t num_slots, std::int64_t max_context, std::int64_t page_size)
      : pages_per_slot((max_context + page_size - 1) / page_size),
        tables(static_cast<std::size_t>(num_slots * pages_per_slot)) {
    std::iota(tables.begin(), tables.end(), PageId{0});
    std::shuffle(tables.begin(), tables.end(), std::mt19937(99));
  }
  std::int64_t num_pages() const { return static_cast<std::int64_t>(tables.size()); }
};

/// Element of a pool where (slot, position, head) begins.
inline std::size_t pool_element(const KvShape& shape, const ScatteredPages& pages,
                                std::int64_t slot, std::int64_t position, std::int64_t head) {
  const std::int64_t page = pages.tables[static_cast<std::size_t>(slot * pages.pages_per_slot +
                                                                  position / shape.page_size)];
  return static_cast<std::size_t>(
      ((page * shape.num_kv_heads + head) * shape.page_size + position % shape.page_size) *
      shape.head_dim);
}

}  // namespace fastfd::testing
