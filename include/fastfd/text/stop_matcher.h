#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace fastfd {

/// Finds stop strings in text that arrives in pieces, and holds back what may yet turn out to be
/// one: text up to the first stop string is emitted, the stop string and all after it are not.
///
/// The first stop string to be complete wins; of several that end at the same byte, the longest.
/// So the outcome does not depend on how the text is cut into pieces. (Aho and Corasick 1975.)
///
/// The compiled automaton is shared by copies; a matcher belongs to one stream, one thread at a
/// time. Pieces must end at character borders, as IncrementalDetokenizer's do; then so does what
/// is emitted.
class StopStringMatcher {
 public:
  /// Empty stop strings are ignored; without any, text passes through.
  explicit StopStringMatcher(const std::vector<std::string>& stop_strings);

  struct Output {
    std::string text;                 ///< now known not to belong to a stop string
    std::optional<std::size_t> stop;  ///< index of the stop string that was found
  };

  /// After a stop was found, further pieces give nothing.
  Output push(std::string_view piece);

  /// End of the stream: the text that was held back.
  std::string flush();

  bool stopped() const { return stopped_; }

  /// Bytes held back.
  std::size_t num_held() const { return held_.size(); }

 private:
  struct Node;
  struct Automaton;

  std::shared_ptr<const Automaton> automaton_;
  std::uint32_t state_ = 0;
  bool stopped_ = false;
  std::string held_;  ///< the longest suffix that begins some stop string
};

}  // namespace fastfd
