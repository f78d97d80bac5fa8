#include "fastfd/core/row_bucket.h"

#include <algorithm>
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

std::vector<std::uint32_t> typical_rows_up_to(std::uint32_t max_rows) {
  constexpr std::uint32_t kEveryBucketTo = 256;
  auto sizes = row_buckets_up_to(std::min(max_rows, kEveryBucketTo));
  for (std::uint32_t rows = 2 * kEveryBucketTo; rows < max_rows; rows *= 2) {
    sizes.push_back(rows);
  }
  if (max_rows > 0 && sizes.back() != max_rows) {
    sizes.push_back(max_rows);
  }
  std::erase_if(sizes, [&](std::uint32_t rows) { return rows > max_rows; });
  return sizes;
}

}  // namespace fastfd
