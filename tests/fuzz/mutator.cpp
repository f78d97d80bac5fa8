#include "fuzz/mutator.h"

#include <algorithm>
#include <cctype>

namespace fastfd::test {

Mutator::Mutator(std::uint64_t seed, std::vector<std::string> words)
    : generator_(seed), words_(std::move(words)) {
  for (const char* word : {"0",
                           "-1",
                           "1e308",
                           "4294967296",
                           "18446744073709551615",
                           "99999999999999999999999999",
                           "null",
                           "true",
                           "\"\"",
                           "{}",
                           "[]",
                           "[[[[[[[[",
                           "{\"a\":",
                           "\\u0000",
                           "\xff\xfe",
                           "\n",
                           "\t",
                           ":",
                           ",",
                           "\"",
                           "NaN",
                           "0.5"}) {
    words_.emplace_back(word);
  }
}

std::string Mutator::mutate(const std::string& original) {
  std::string text = original;
  const std::size_t count = 1 + below(8);
  for (std::size_t i = 0; i < count; ++i) {
    mutate_once(text);
  }
  return text;
}

void Mutator::mutate_once(std::string& text) {
  const std::size_t at = below(text.size() + 1);
  const std::size_t length = std::min(text.size() - at, 1 + below(24));
  const std::string& word = words_[below(words_.size())];
  switch (below(9)) {
    case 0:  // flip a bit
      if (at < text.size()) {
        text[at] = static_cast<char>(text[at] ^ (1 << below(8)));
      }
      break;
    case 1:
      text.erase(at, length);
      break;
    case 2:
      text.insert(at, word);
      break;
    case 3:
      text.replace(at, length, word);
      break;
    case 4:  // repeat a piece
      text.insert(below(text.size() + 1), text.substr(at, length));
      break;
    case 5:  // another number in place of a number: keeps the syntax and changes the meaning
      for (std::size_t i = at; i < text.size(); ++i) {
        if (std::isdigit(static_cast<unsigned char>(text[i])) != 0) {
          const std::size_t end = std::min(text.find_first_not_of("0123456789", i), text.size());
          text.replace(i, end - i, word);
          break;
        }
      }
      break;
    case 6:
      if (at < text.size()) {
        text[at] = static_cast<char>(below(256));
      }
      break;
    case 7:
      text.insert(at, std::string(1 + below(300), static_cast<char>(below(256))));
      break;
    default:
      if (below(4) == 0) {  // truncation loses most of the text: less often
        text.resize(at);
      }
      break;
  }
}

}  // namespace fastfd::test
