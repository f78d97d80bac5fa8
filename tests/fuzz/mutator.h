#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <vector>

namespace fastfd::test {

/// Makes damaged variants of a text or file: flipped bits, changed, inserted, deleted, repeated and
/// swapped pieces, truncation, and words that parsers stumble over. The same seed gives the same
/// variants everywhere.
class Mutator {
 public:
  /// `words` are inserted or put in place of pieces, beside built-in ones.
  explicit Mutator(std::uint64_t seed, std::vector<std::string> words = {});

  /// One to eight mutations of `original`.
  std::string mutate(const std::string& original);

 private:
  std::size_t below(std::size_t bound) { return bound == 0 ? 0 : generator_() % bound; }
  void mutate_once(std::string& text);

  std::mt19937_64 generator_;
  std::vector<std::string> words_;
};

}  // namespace fastfd::test
