#include "support/pairwise.h"

#include <set>
#include <tuple>

namespace fastfd::testing {
namespace {

using Pair = std::tuple<std::size_t, std::size_t, std::size_t, std::size_t>;

std::set<Pair> all_pairs(const std::vector<std::size_t>& levels) {
  std::set<Pair> pairs;
  for (std::size_t a = 0; a < levels.size(); ++a) {
    for (std::size_t b = a + 1; b < levels.size(); ++b) {
      for (std::size_t i = 0; i < levels[a]; ++i) {
        for (std::size_t j = 0; j < levels[b]; ++j) {
          pairs.emplace(a, i, b, j);
        }
      }
    }
  }
  return pairs;
}

}  // namespace

std::vector<std::vector<std::size_t>> pairwise_rows(const std::vector<std::size_t>& levels) {
  constexpr std::size_t kUnset = ~std::size_t{0};
  std::set<Pair> open = all_pairs(levels);
  std::vector<std::vector<std::size_t>> rows;
  while (!open.empty()) {
    std::vector<std::size_t> row(levels.size(), kUnset);
    const auto [a, i, b, j] = *open.begin();
    row[a] = i;
    row[b] = j;
    for (std::size_t factor = 0; factor < levels.size(); ++factor) {
      if (row[factor] != kUnset) {
        continue;
      }
      std::size_t best = 0;
      std::size_t best_count = 0;
      for (std::size_t level = 0; level < levels[factor]; ++level) {
        std::size_t count = 0;
        for (std::size_t other = 0; other < levels.size(); ++other) {
          if (other == factor || row[other] == kUnset) {
            continue;
          }
          count += other < factor ? open.count({other, row[other], factor, level})
                                  : open.count({factor, level, other, row[other]});
        }
        // Ties turn with the row, so that levels without open pairs still take turns.
        if (count > best_count || (count == best_count && level == rows.size() % levels[factor])) {
          best = level;
          best_count = count;
        }
      }
      row[factor] = best;
    }
    for (std::size_t x = 0; x < levels.size(); ++x) {
      for (std::size_t y = x + 1; y < levels.size(); ++y) {
        open.erase({x, row[x], y, row[y]});
      }
    }
    rows.push_back(std::move(row));
  }
  return rows;
}

std::vector<std::vector<std::size_t>> all_rows(const std::vector<std::size_t>& levels) {
  std::vector<std::vector<std::size_t>> rows{{}};
  for (const std::size_t count : levels) {
    std::vector<std::vector<std::size_t>> longer;
    for (const auto& row : rows) {
      for (std::size_t level = 0; level < count; ++level) {
        longer.push_back(row);
        longer.back().push_back(level);
      }
    }
    rows = std::move(longer);
  }
  return rows;
}

}  // namespace fastfd::testing
