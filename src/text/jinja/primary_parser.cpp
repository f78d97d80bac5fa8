#include <charconv>

#include "text/jinja/expression_parser.h"

namespace fastfd::jinja {

ExprPtr ExpressionParser::parse_primary() {
  const int at = line();
  switch (current().kind) {
    case TokenKind::kName:
      return parse_name();
    case TokenKind::kString: {
      std::string text;
      while (is(TokenKind::kString)) {
        text += next().text;
      }
      return make(at, LiteralExpr{Value(std::move(text))}, 0);
    }
    case TokenKind::kInteger:
    case TokenKind::kFloat:
      return parse_number();
    default:
      break;
  }
  if (skip_operator("(")) {
    ExprPtr expr = parse_tuple({.in_parentheses = true});
    expect_operator(")");
    return expr;
  }
  if (is_operator("[")) {
    return parse_list();
  }
  if (is_operator("{")) {
    return parse_dict();
  }
  fail_here(fmt::format("unexpected {}", describe(current())));
}

ExprPtr ExpressionParser::parse_name() {
  Token token = next();
  const std::string& name = token.text;
  if (name == "true" || name == "True" || name == "false" || name == "False") {
    return make(token.line, LiteralExpr{Value(name[0] == 't' || name[0] == 'T')}, 0);
  }
  if (name == "none" || name == "None") {
    return make(token.line, LiteralExpr{Value()}, 0);
  }
  use_.varargs |= name == "varargs";
  use_.kwargs |= name == "kwargs";
  use_.caller |= name == "caller";
  const SymbolId symbol = symbol_of(name);
  return make(token.line, NameExpr{symbol, std::move(token.text)}, 0);
}

ExprPtr ExpressionParser::parse_number() {
  const Token token = next();
  const char* begin = token.text.data();
  const char* end = begin + token.text.size();
  if (token.kind == TokenKind::kFloat) {
    double value = 0;
    std::from_chars(begin, end, value);
    return make(token.line, LiteralExpr{Value(value)}, 0);
  }
  std::int64_t value = 0;
  if (std::from_chars(begin, end, value).ec != std::errc()) {
    fail_at(token.line, fmt::format("integer {} does not fit 64 bits", token.text));
  }
  return make(token.line, LiteralExpr{Value(value)}, 0);
}

ExprPtr ExpressionParser::parse_tuple(const TupleOptions& options) {
  const int at = line();
  std::vector<ExprPtr> items;
  bool is_tuple = false;
  for (;;) {
    const bool at_end = is(TokenKind::kVariableEnd) || is(TokenKind::kBlockEnd) ||
                        is_operator(")") ||
                        (!options.end_name.empty() && is_name(options.end_name));
    if (at_end) {
      break;
    }
    items.push_back(parse_expression(options.with_condition));
    if (!skip_operator(",")) {
      break;
    }
    is_tuple = true;
  }
  if (!is_tuple && !items.empty()) {
    return std::move(items[0]);
  }
  if (!is_tuple && !options.in_parentheses) {
    fail_here(fmt::format("expected an expression, got {}", describe(current())));
  }
  const auto depth = depth_of(items);
  return make(at, ListExpr{std::move(items), /*is_tuple=*/true}, depth);
}

ExprPtr ExpressionParser::parse_list() {
  const int at = next().line;
  std::vector<ExprPtr> items;
  while (!is_operator("]")) {
    items.push_back(parse_expression());
    if (!skip_operator(",")) {
      break;
    }
  }
  expect_operator("]");
  const auto depth = depth_of(items);
  return make(at, ListExpr{std::move(items), /*is_tuple=*/false}, depth);
}

ExprPtr ExpressionParser::parse_dict() {
  const int at = next().line;
  DictExpr dict;
  std::uint32_t depth = 0;
  while (!is_operator("}")) {
    ExprPtr key = parse_expression();
    expect_operator(":");
    ExprPtr value = parse_expression();
    depth = std::max(depth, depth_of({&key, &value}));
    dict.items.emplace_back(std::move(key), std::move(value));
    if (!skip_operator(",")) {
      break;
    }
  }
  expect_operator("}");
  return make(at, std::move(dict), depth);
}

ExprPtr ExpressionParser::parse_postfix(ExprPtr expr) {
  for (;;) {
    if (is_operator(".") || is_operator("[")) {
      expr = parse_subscript(std::move(expr));
    } else if (is_operator("(")) {
      expr = parse_call(std::move(expr));
    } else {
      return expr;
    }
  }
}

ExprPtr ExpressionParser::parse_filters_and_tests(ExprPtr expr) {
  for (;;) {
    if (is_operator("|")) {
      expr = parse_filter_chain(std::move(expr), /*first_without_pipe=*/false);
    } else if (is_name("is")) {
      expr = parse_test(std::move(expr));
    } else if (is_operator("(")) {
      expr = parse_call(std::move(expr));
    } else {
      return expr;
    }
  }
}

ExprPtr ExpressionParser::parse_subscript(ExprPtr object) {
  const Token token = next();
  const auto object_depth = object->depth;
  if (token.text == ".") {
    const Token attribute = next();
    if (attribute.kind == TokenKind::kName) {
      return make(token.line, AttributeExpr{std::move(object), attribute.text}, object_depth);
    }
    if (attribute.kind != TokenKind::kInteger) {
      fail_at(attribute.line, "expected name or number after '.'");
    }
    --pos_;
    ExprPtr index = parse_number();
    return make(token.line, SubscriptExpr{std::move(object), std::move(index)}, object_depth);
  }
  SliceExpr slice;
  bool is_slice = false;
  const auto at_part_end = [&] { return is_operator(":") || is_operator("]"); };
  if (!at_part_end()) {
    slice.start = parse_expression();
  }
  if (skip_operator(":")) {
    is_slice = true;
    if (!at_part_end()) {
      slice.stop = parse_expression();
    }
    if (skip_operator(":") && !at_part_end()) {
      slice.step = parse_expression();
    }
  }
  expect_operator("]");
  const auto depth = std::max(object_depth, depth_of({&slice.start, &slice.stop, &slice.step}));
  if (is_slice) {
    slice.object = std::move(object);
    return make(token.line, std::move(slice), depth);
  }
  if (!slice.start) {
    fail_at(token.line, "empty subscript");
  }
  return make(token.line, SubscriptExpr{std::move(object), std::move(slice.start)}, depth);
}

ExprPtr ExpressionParser::parse_call(ExprPtr callee) {
  const int at = line();
  Arguments arguments = parse_arguments();
  const auto depth = std::max(callee->depth, depth_of(arguments));
  return make(at, CallExpr{std::move(callee), std::move(arguments)}, depth);
}

Arguments ExpressionParser::parse_arguments() {
  Arguments arguments;
  const int at = line();
  expect_operator("(");
  while (!is_operator(")")) {
    const bool has_star = static_cast<bool>(arguments.star);
    const bool has_double_star = static_cast<bool>(arguments.double_star);
    bool legal = !has_double_star;
    if (skip_operator("*")) {
      legal = legal && !has_star;
      arguments.star = parse_expression();
    } else if (skip_operator("**")) {
      arguments.double_star = parse_expression();
    } else if (is(TokenKind::kName) && tokens_[pos_ + 1].kind == TokenKind::kOperator &&
               tokens_[pos_ + 1].text == "=") {
      std::string name = next().text;
      next();
      arguments.keywords.emplace_back(std::move(name), parse_expression());
    } else {
      legal = legal && !has_star && arguments.keywords.empty();
      arguments.positional.push_back(parse_expression());
    }
    if (!legal) {
      fail_at(at, "invalid syntax for function call expression");
    }
    if (!skip_operator(",")) {
      break;
    }
  }
  expect_operator(")");
  return arguments;
}

ExprPtr ExpressionParser::parse_filter_chain(ExprPtr input, bool first_without_pipe) {
  while (first_without_pipe || is_operator("|")) {
    if (!first_without_pipe) {
      next();
    }
    first_without_pipe = false;
    Token name = expect(TokenKind::kName, "a filter's name");
    Arguments arguments;
    if (is_operator("(")) {
      arguments = parse_arguments();
    }
    const auto depth = std::max(input ? input->depth : 0, depth_of(arguments));
    input = make(name.line,
                 FilterExpr{std::move(input), std::move(name.text), std::move(arguments)}, depth);
  }
  return input;
}

ExprPtr ExpressionParser::parse_test(ExprPtr input) {
  const int at = next().line;  // "is"
  const bool negated = skip_name("not");
  TestExpr test;
  test.name = expect(TokenKind::kName, "a test's name").text;
  const bool has_bare_argument =
      is(TokenKind::kString) || is(TokenKind::kInteger) || is(TokenKind::kFloat) ||
      is_operator("[") || is_operator("{") ||
      (is(TokenKind::kName) && !is_name("else") && !is_name("or") && !is_name("and"));
  if (is_operator("(")) {
    test.arguments = parse_arguments();
  } else if (has_bare_argument) {
    if (is_name("is")) {
      fail_here("you cannot chain multiple tests with is");
    }
    test.arguments.positional.push_back(parse_postfix(parse_primary()));
  }
  const auto depth = std::max(input->depth, depth_of(test.arguments));
  test.input = std::move(input);
  ExprPtr expr = make(at, std::move(test), depth);
  if (negated) {
    expr = make(at, NotExpr{std::move(expr)}, depth + 1);
  }
  return expr;
}

Target ExpressionParser::parse_single_target(bool with_attribute) {
  if (skip_operator("(")) {
    if (++nesting_ > kMaxNesting) {
      fail_here("expression is nested too deep");
    }
    Target target = parse_target(with_attribute);
    --nesting_;
    expect_operator(")");
    return target;
  }
  Target target;
  target.name = expect(TokenKind::kName, "a variable's name").text;
  for (const char* constant : {"true", "false", "none", "True", "False", "None"}) {
    if (target.name == constant) {
      fail_here(fmt::format("cannot assign to '{}'", target.name));
    }
  }
  target.symbol = symbol_of(target.name);
  if (with_attribute && skip_operator(".")) {
    target.attribute = expect(TokenKind::kName, "an attribute's name").text;
  }
  return target;
}

Target ExpressionParser::parse_target(bool with_attribute) {
  Target first = parse_single_target(with_attribute);
  if (!is_operator(",")) {
    return first;
  }
  Target result;
  result.tuple.push_back(std::move(first));
  while (skip_operator(",")) {
    if (!is(TokenKind::kName) && !is_operator("(")) {
      break;
    }
    if (is_name("in")) {
      break;
    }
    result.tuple.push_back(parse_single_target(with_attribute));
  }
  return result;
}

}  // namespace fastfd::jinja
