#include "config/problems.h"

#include <algorithm>
#include <numeric>

#include "fastfd/config/cluster_config.h"
#include "fastfd/core/printable.h"

namespace fastfd::config {
namespace {

/// Levenshtein distance by the two-row dynamic programme.
std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t substitution = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, substitution});
    }
  }
  return row[b.size()];
}

}  // namespace

int Problems::line_of(std::string_view key) const {
  for (;;) {
    if (const auto at = lines_.find(key); at != lines_.end()) {
      return at->second;
    }
    const std::size_t dot = key.rfind('.');
    if (dot == std::string_view::npos) {
      return 1;
    }
    key = key.substr(0, dot);
  }
}

void Problems::add_at(int line, const std::string& key, const std::string& what) {
  bad_keys_.insert(key);
  const std::string where = source_name_ + ":" + std::to_string(line) + ": ";
  problems_.push_back({line, where + (key.empty() ? what : key + ": " + what)});
}

void Problems::raise_if_any() const {
  if (problems_.empty()) {
    return;
  }
  auto sorted = problems_;
  std::stable_sort(sorted.begin(), sorted.end(),
                   [](const Problem& a, const Problem& b) { return a.line < b.line; });
  std::string text;
  for (const auto& problem : sorted) {
    text += (text.empty() ? "" : "\n") + problem.text;
  }
  throw ConfigError(printable(text));  // it quotes the file, which may hold any character
}

std::string closest_match(std::string_view word, const std::vector<std::string>& candidates) {
  constexpr std::size_t kLongestWord = 64;  // nobody misspells into something longer
  if (word.size() > kLongestWord) {
    return {};
  }
  std::string best;
  std::size_t best_distance = std::max<std::size_t>(2, word.size() / 3) + 1;
  for (const auto& candidate : candidates) {
    const std::size_t distance = edit_distance(word, candidate);
    if (distance < best_distance && distance < candidate.size()) {
      best = candidate;
      best_distance = distance;
    }
  }
  return best;
}

}  // namespace fastfd::config
