#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <initializer_list>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "text/jinja/ast.h"
#include "text/jinja/lexer.h"

namespace fastfd::jinja {

/// The token stream and the expressions: operators in expression_parser.cpp, what they join in
/// primary_parser.cpp. Statements are in parser.cpp.
class ExpressionParser {
 protected:
  struct TupleOptions {
    bool with_condition = true;   ///< `a if b else c` allowed
    bool in_parentheses = false;  ///< then () is a tuple
    std::string_view end_name = {};
  };
  /// Special names that the macro being parsed mentions.
  struct SymbolUse {
    bool varargs = false;
    bool kwargs = false;
    bool caller = false;
  };

  explicit ExpressionParser(std::string_view source) : tokens_(tokenize(source)) {}

  const Token& current() const { return tokens_[pos_]; }
  int line() const { return current().line; }
  Token next();
  bool is(TokenKind kind) const { return current().kind == kind; }
  bool is_name(std::string_view name) const;
  bool is_operator(std::string_view op) const;
  bool skip_name(std::string_view name);
  bool skip_operator(std::string_view op);
  Token expect(TokenKind kind, std::string_view what);
  void expect_name(std::string_view name);
  void expect_operator(std::string_view op);
  [[noreturn]] void fail_here(const std::string& message) const { fail_at(line(), message); }
  [[noreturn]] static void fail_at(int line, const std::string& message);

  SymbolId symbol_of(const std::string& name);
  std::vector<std::string> take_symbols() { return std::move(symbols_); }

  ExprPtr parse_expression(bool with_condition = true);
  ExprPtr parse_tuple(const TupleOptions& options);
  ExprPtr parse_tuple() { return parse_tuple(TupleOptions()); }
  Target parse_target(bool with_attribute);
  /// `|name(args)|...` applied to `input`; nullptr is the text of a block.
  ExprPtr parse_filter_chain(ExprPtr input, bool first_without_pipe);

  SymbolUse use_;

 private:
  /// Every nested bracket costs a dozen frames of the parser.
  static constexpr int kMaxNesting = 60;

  ExprPtr parse_or();
  ExprPtr parse_and();
  ExprPtr parse_not();
  ExprPtr parse_compare();
  ExprPtr parse_sum();
  ExprPtr parse_concat();
  ExprPtr parse_product();
  ExprPtr parse_power();
  ExprPtr parse_unary(bool with_filter);
  ExprPtr parse_primary();
  ExprPtr parse_name();
  ExprPtr parse_number();
  ExprPtr parse_list();
  ExprPtr parse_dict();
  ExprPtr parse_postfix(ExprPtr expr);
  ExprPtr parse_filters_and_tests(ExprPtr expr);
  ExprPtr parse_subscript(ExprPtr object);
  ExprPtr parse_call(ExprPtr callee);
  ExprPtr parse_test(ExprPtr input);
  Arguments parse_arguments();
  Target parse_single_target(bool with_attribute);
  std::optional<CompareOp> take_compare_op();

  /// Makes a node above `children` and bounds the depth of the tree.
  static ExprPtr make(int at, ExprNode node, std::uint32_t child_depth);
  static std::string describe(const Token& token);
  static std::uint32_t depth_of(std::initializer_list<const ExprPtr*> children);
  static std::uint32_t depth_of(const std::vector<ExprPtr>& children);
  static std::uint32_t depth_of(const Arguments& arguments);

  std::vector<Token> tokens_;
  std::size_t pos_ = 0;
  int nesting_ = 0;
  std::vector<std::string> symbols_;
  std::unordered_map<std::string, SymbolId> symbol_ids_;
};

}  // namespace fastfd::jinja
