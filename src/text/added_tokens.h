#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "fastfd/core/ids.h"

namespace fastfd::text {

/// An entry of `added_tokens` in tokenizer.json.
struct AddedToken {
  TokenId id = kNoToken;
  std::string content;
  bool special = false;
  bool normalized = false;   ///< looked for in the normalised text, else in the raw text
  bool lstrip = false;       ///< swallows white space before it
  bool rstrip = false;       ///< swallows white space after it
  bool single_word = false;  ///< not next to a word character
};

/// Cuts text at added tokens: leftmost, then longest. Immutable after construction.
class AddedTokenSplitter {
 public:
  struct Part {
    std::string_view text;
    TokenId id = kNoToken;  ///< kNoToken: ordinary text
  };

  void add(const AddedToken& token, std::string_view pattern);
  bool empty() const { return tokens_.empty(); }

  /// Appends the parts of `text`. Special tokens stay ordinary text unless `parse_special`.
  void split(std::string_view text, bool parse_special, std::vector<Part>& parts) const;

 private:
  struct Node {
    std::int32_t token = -1;  ///< index into tokens_ of the pattern that ends here
    std::vector<std::pair<unsigned char, std::uint32_t>> children;
  };
  struct Match {
    std::size_t begin = 0;
    std::size_t end = 0;
    std::int32_t token = -1;
  };

  bool find(std::string_view text, std::size_t from, Match& match) const;
  const std::uint32_t* child(std::uint32_t node, unsigned char byte) const;

  std::vector<AddedToken> tokens_;
  std::vector<Node> nodes_ = std::vector<Node>(1);
  std::array<bool, 256> is_first_{};
};

}  // namespace fastfd::text
