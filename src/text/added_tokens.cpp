#include "text/added_tokens.h"

#include <algorithm>

#include "text/unicode.h"
#include "text/utf8.h"

namespace fastfd::text {
namespace {

bool ends_with_word(std::string_view text) {
  std::size_t pos = previous_boundary(text, text.size());
  return is_word(next_code_point(text, pos));
}

bool starts_with_word(std::string_view text) {
  std::size_t pos = 0;
  return is_word(next_code_point(text, pos));
}

std::size_t trailing_space_begin(std::string_view text) {
  std::size_t begin = text.size();
  while (begin > 0) {
    const std::size_t start = previous_boundary(text, begin);
    std::size_t pos = start;
    if (!is_white_space(next_code_point(text, pos))) {
      break;
    }
    begin = start;
  }
  return begin;
}

std::size_t leading_space_end(std::string_view text, std::size_t begin) {
  std::size_t pos = begin;
  while (pos < text.size() && is_white_space(next_code_point(text, pos))) {
    begin = pos;
  }
  return begin;
}

}  // namespace

const std::uint32_t* AddedTokenSplitter::child(std::uint32_t node, unsigned char byte) const {
  for (const auto& [label, target] : nodes_[node].children) {
    if (label == byte) {
      return &target;
    }
  }
  return nullptr;
}

void AddedTokenSplitter::add(const AddedToken& token, std::string_view pattern) {
  if (pattern.empty()) {
    return;
  }
  std::uint32_t node = 0;
  for (const char c : pattern) {
    const auto byte = static_cast<unsigned char>(c);
    if (const std::uint32_t* next = child(node, byte)) {
      node = *next;
    } else {
      const auto fresh = static_cast<std::uint32_t>(nodes_.size());
      nodes_.emplace_back();
      nodes_[node].children.emplace_back(byte, fresh);
      node = fresh;
    }
  }
  if (nodes_[node].token < 0) {
    nodes_[node].token = static_cast<std::int32_t>(tokens_.size());
  }
  tokens_.push_back(token);
  is_first_[static_cast<unsigned char>(pattern[0])] = true;
}

bool AddedTokenSplitter::find(std::string_view text, std::size_t from, Match& match) const {
  for (std::size_t begin = from; begin < text.size(); ++begin) {
    if (!is_first_[static_cast<unsigned char>(text[begin])]) {
      continue;
    }
    std::uint32_t node = 0;
    match.token = -1;
    for (std::size_t pos = begin; pos < text.size(); ++pos) {
      const std::uint32_t* next = child(node, static_cast<unsigned char>(text[pos]));
      if (next == nullptr) {
        break;
      }
      node = *next;
      if (nodes_[node].token >= 0) {
        match = {begin, pos + 1, nodes_[node].token};
      }
    }
    if (match.token >= 0) {
      return true;
    }
  }
  return false;
}

void AddedTokenSplitter::split(std::string_view text, bool parse_special,
                               std::vector<Part>& parts) const {
  std::size_t done = 0;  // text before it is in `parts`
  std::size_t from = 0;
  Match match;
  while (find(text, from, match)) {
    from = match.end;
    const AddedToken& token = tokens_[static_cast<std::size_t>(match.token)];
    if (token.special && !parse_special) {
      continue;
    }
    if (token.single_word &&
        ((match.begin > 0 && ends_with_word(text.substr(0, match.begin))) ||
         (match.end < text.size() && starts_with_word(text.substr(match.end))))) {
      continue;
    }
    if (token.lstrip) {
      match.begin = std::max(trailing_space_begin(text.substr(0, match.begin)), done);
    }
    if (token.rstrip) {
      match.end = leading_space_end(text, match.end);
    }
    if (done < match.begin) {
      parts.push_back({text.substr(done, match.begin - done), kNoToken});
    }
    parts.push_back({{}, token.id});
    done = std::max(done, match.end);
  }
  if (done < text.size()) {
    parts.push_back({text.substr(done), kNoToken});
  }
}

}  // namespace fastfd::text
