#include "text/jinja/expression_parser.h"

#include "fastfd/text/chat_template.h"

namespace fastfd::jinja {
namespace {

// Deeper trees would overflow the stack of whoever walks them.
constexpr std::uint32_t kMaxExprDepth = 200;

}  // namespace

std::string ExpressionParser::describe(const Token& token) {
  switch (token.kind) {
    case TokenKind::kEnd:
      return "end of template";
    case TokenKind::kData:
      return "template text";
    case TokenKind::kVariableBegin:
      return "'{{'";
    case TokenKind::kVariableEnd:
      return "'}}'";
    case TokenKind::kBlockBegin:
      return "'{%'";
    case TokenKind::kBlockEnd:
      return "'%}'";
    default:
      return fmt::format("'{}'", token.text);
  }
}

void ExpressionParser::fail_at(int line, const std::string& message) {
  throw ChatTemplateError(ChatTemplateError::Kind::kSyntax, line, message);
}

Token ExpressionParser::next() {
  Token token = tokens_[pos_];
  if (token.kind != TokenKind::kEnd) {
    ++pos_;
  }
  return token;
}

bool ExpressionParser::is_name(std::string_view name) const {
  return is(TokenKind::kName) && current().text == name;
}

bool ExpressionParser::is_operator(std::string_view op) const {
  return is(TokenKind::kOperator) && current().text == op;
}

bool ExpressionParser::skip_name(std::string_view name) {
  const bool found = is_name(name);
  pos_ += static_cast<std::size_t>(found);
  return found;
}

bool ExpressionParser::skip_operator(std::string_view op) {
  const bool found = is_operator(op);
  pos_ += static_cast<std::size_t>(found);
  return found;
}

Token ExpressionParser::expect(TokenKind kind, std::string_view what) {
  if (!is(kind)) {
    fail_here(fmt::format("expected {}, got {}", what, describe(current())));
  }
  return next();
}

void ExpressionParser::expect_name(std::string_view name) {
  if (!skip_name(name)) {
    fail_here(fmt::format("expected '{}', got {}", name, describe(current())));
  }
}

void ExpressionParser::expect_operator(std::string_view op) {
  if (!skip_operator(op)) {
    fail_here(fmt::format("expected '{}', got {}", op, describe(current())));
  }
}

SymbolId ExpressionParser::symbol_of(const std::string& name) {
  const auto [it, inserted] = symbol_ids_.try_emplace(name, static_cast<SymbolId>(symbols_.size()));
  if (inserted) {
    symbols_.push_back(name);
  }
  return it->second;
}

std::uint32_t ExpressionParser::depth_of(std::initializer_list<const ExprPtr*> children) {
  std::uint32_t depth = 0;
  for (const ExprPtr* child : children) {
    depth = std::max(depth, *child ? (*child)->depth : 0);
  }
  return depth;
}

std::uint32_t ExpressionParser::depth_of(const std::vector<ExprPtr>& children) {
  std::uint32_t depth = 0;
  for (const ExprPtr& child : children) {
    depth = std::max(depth, child->depth);
  }
  return depth;
}

std::uint32_t ExpressionParser::depth_of(const Arguments& arguments) {
  std::uint32_t depth =
      std::max(depth_of(arguments.positional), depth_of({&arguments.star, &arguments.double_star}));
  for (const auto& [name, value] : arguments.keywords) {
    depth = std::max(depth, value->depth);
  }
  return depth;
}

ExprPtr ExpressionParser::make(int at, ExprNode node, std::uint32_t child_depth) {
  if (child_depth >= kMaxExprDepth) {
    fail_at(at,
            fmt::format("expression has more than {} levels; split it with set", kMaxExprDepth));
  }
  auto expr = std::make_unique<Expr>();
  expr->line = at;
  expr->depth = child_depth + 1;
  expr->node = std::move(node);
  return expr;
}

ExprPtr ExpressionParser::parse_expression(bool with_condition) {
  if (++nesting_ > kMaxNesting) {
    fail_here("expression is nested too deep");
  }
  ExprPtr expr = parse_or();
  while (with_condition && is_name("if")) {
    const int at = next().line;
    ExprPtr test = parse_or();
    ExprPtr otherwise;
    if (skip_name("else")) {
      otherwise = parse_expression();
    }
    const auto depth = depth_of({&expr, &test, &otherwise});
    expr = make(at, ConditionalExpr{std::move(test), std::move(expr), std::move(otherwise)}, depth);
  }
  --nesting_;
  return expr;
}

ExprPtr ExpressionParser::parse_or() {
  ExprPtr left = parse_and();
  while (is_name("or")) {
    const int at = next().line;
    ExprPtr right = parse_and();
    const auto depth = depth_of({&left, &right});
    left = make(at, LogicalExpr{false, std::move(left), std::move(right)}, depth);
  }
  return left;
}

ExprPtr ExpressionParser::parse_and() {
  ExprPtr left = parse_not();
  while (is_name("and")) {
    const int at = next().line;
    ExprPtr right = parse_not();
    const auto depth = depth_of({&left, &right});
    left = make(at, LogicalExpr{true, std::move(left), std::move(right)}, depth);
  }
  return left;
}

ExprPtr ExpressionParser::parse_not() {
  int num_not = 0;
  const int at = line();
  while (skip_name("not")) {
    ++num_not;
  }
  ExprPtr expr = parse_compare();
  for (; num_not > 0; --num_not) {
    const auto depth = expr->depth;
    expr = make(at, NotExpr{std::move(expr)}, depth);
  }
  return expr;
}

std::optional<CompareOp> ExpressionParser::take_compare_op() {
  static constexpr std::pair<std::string_view, CompareOp> kOps[] = {
      {"==", CompareOp::kEq}, {"!=", CompareOp::kNe}, {"<", CompareOp::kLt},
      {"<=", CompareOp::kLe}, {">", CompareOp::kGt},  {">=", CompareOp::kGe}};
  for (const auto& [text, op] : kOps) {
    if (skip_operator(text)) {
      return op;
    }
  }
  if (skip_name("in")) {
    return CompareOp::kIn;
  }
  if (is_name("not") && tokens_[pos_ + 1].kind == TokenKind::kName &&
      tokens_[pos_ + 1].text == "in") {
    pos_ += 2;
    return CompareOp::kNotIn;
  }
  return std::nullopt;
}

ExprPtr ExpressionParser::parse_compare() {
  const int at = line();
  ExprPtr first = parse_sum();
  CompareExpr compare;
  auto depth = first->depth;
  while (const auto op = take_compare_op()) {
    compare.rest.emplace_back(*op, parse_sum());
    depth = std::max(depth, compare.rest.back().second->depth);
  }
  if (compare.rest.empty()) {
    return first;
  }
  compare.first = std::move(first);
  return make(at, std::move(compare), depth);
}

ExprPtr ExpressionParser::parse_sum() {
  ExprPtr left = parse_concat();
  while (is_operator("+") || is_operator("-")) {
    const Token op = next();
    ExprPtr right = parse_concat();
    const auto depth = depth_of({&left, &right});
    left = make(op.line,
                BinaryExpr{op.text == "+" ? BinaryOp::kAdd : BinaryOp::kSub, std::move(left),
                           std::move(right)},
                depth);
  }
  return left;
}

ExprPtr ExpressionParser::parse_concat() {
  const int at = line();
  ConcatExpr concat;
  concat.parts.push_back(parse_product());
  while (skip_operator("~")) {
    concat.parts.push_back(parse_product());
  }
  if (concat.parts.size() == 1) {
    return std::move(concat.parts[0]);
  }
  const auto depth = depth_of(concat.parts);
  return make(at, std::move(concat), depth);
}

ExprPtr ExpressionParser::parse_product() {
  static constexpr std::pair<std::string_view, BinaryOp> kOps[] = {{"*", BinaryOp::kMul},
                                                                   {"/", BinaryOp::kDiv},
                                                                   {"//", BinaryOp::kFloorDiv},
                                                                   {"%", BinaryOp::kMod}};
  ExprPtr left = parse_power();
  for (;;) {
    const auto* op = std::find_if(std::begin(kOps), std::end(kOps),
                                  [&](const auto& entry) { return is_operator(entry.first); });
    if (op == std::end(kOps)) {
      return left;
    }
    const int at = next().line;
    ExprPtr right = parse_power();
    const auto depth = depth_of({&left, &right});
    left = make(at, BinaryExpr{op->second, std::move(left), std::move(right)}, depth);
  }
}

ExprPtr ExpressionParser::parse_power() {
  ExprPtr left = parse_unary(/*with_filter=*/true);
  while (is_operator("**")) {
    const int at = next().line;
    ExprPtr right = parse_unary(/*with_filter=*/true);
    const auto depth = depth_of({&left, &right});
    left = make(at, BinaryExpr{BinaryOp::kPow, std::move(left), std::move(right)}, depth);
  }
  return left;
}

ExprPtr ExpressionParser::parse_unary(bool with_filter) {
  ExprPtr expr;
  if (is_operator("-") || is_operator("+")) {
    if (++nesting_ > kMaxNesting) {
      fail_here("expression is nested too deep");
    }
    const Token sign = next();
    ExprPtr operand = parse_unary(/*with_filter=*/false);
    --nesting_;
    const auto depth = operand->depth;
    expr = make(sign.line, SignExpr{sign.text == "-", std::move(operand)}, depth);
  } else {
    expr = parse_primary();
  }
  expr = parse_postfix(std::move(expr));
  return with_filter ? parse_filters_and_tests(std::move(expr)) : std::move(expr);
}

}  // namespace fastfd::jinja
