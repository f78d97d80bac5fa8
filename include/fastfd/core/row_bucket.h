#pragma once

#include <cstdint>
#include <vector>

namespace fastfd {

/// Shape bucket of a (step, lane): `rows` rounded up so that few graphs serve every step and no
/// more than 1 row in 4 is padding from 4 rows up. The plan says which one both pools use.
std::uint32_t row_bucket(std::uint32_t rows);

/// Every bucket that up to `max_rows` rows fall into, ascending.
std::vector<std::uint32_t> row_buckets_up_to(std::uint32_t max_rows);

/// Every bucket to 256, then each doubling, then `max_rows` itself: sizes in which kernels take all
/// the shapes they have.
std::vector<std::uint32_t> typical_rows_up_to(std::uint32_t max_rows);

}  // namespace fastfd
