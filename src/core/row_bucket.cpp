#include "fastfd/core/row_bucket.h"

#include <bit>

namespace fastfd {

std::uint32_t row_bucket(std::uint32_t rows) {
  if (rows <= 16) {
    return std::bit_ceil(rows);
  }
  const std::uint32_t multiple = rows <= 256 ? 16 : 64;
  return (rows + multiple - 1) / multiple * multiple;
}

std::vector<std::uint32_t> row_buckets_up_to(std::uint32_t max_rows) {
  std::vector<std::uint32_t> buckets;
  for (std::uint32_t rows = 1; rows <= max_rows; rows = buckets.back() + 1) {
    buckets.push_back(row_bucket(rows));
  }
  return buckets;
}

}  // namespace fastfd
