#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace fastfd::jinja {

enum class TokenKind : std::uint8_t {
  kData,           ///< text between tags
  kVariableBegin,  ///< {{
  kVariableEnd,
  kBlockBegin,  ///< {%
  kBlockEnd,
  kName,
  kString,
  kInteger,
  kFloat,
  kOperator,
  kEnd,
};

struct Token {
  TokenKind kind = TokenKind::kEnd;
  int line = 1;
  std::string text;  ///< data, name, operator, digits; a string without quotes and escapes
};

/// Tokens of a template with trim_blocks and lstrip_blocks, `-` and `+` at tags, comments and raw
/// blocks applied. The last token is kEnd. Throws ChatTemplateError (kSyntax).
std::vector<Token> tokenize(std::string_view source);

}  // namespace fastfd::jinja
