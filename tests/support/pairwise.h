#pragma once

#include <cstddef>
#include <vector>

namespace fastfd::testing {

/// Rows of factor levels in which every pair of levels of two factors occurs at least once, chosen
/// greedily (Cohen et al., "The AETG system", IEEE TSE 1997, without its randomness): the same
/// rows every time. levels[i] is the number of levels of factor i.
std::vector<std::vector<std::size_t>> pairwise_rows(const std::vector<std::size_t>& levels);

/// Every combination.
std::vector<std::vector<std::size_t>> all_rows(const std::vector<std::size_t>& levels);

}  // namespace fastfd::testing
