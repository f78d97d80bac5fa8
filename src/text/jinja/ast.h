#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "text/jinja/value.h"

namespace fastfd::jinja {

/// Variable names are numbered, so that a look-up compares integers.
using SymbolId = std::uint32_t;

struct Expr;
struct Stmt;
using ExprPtr = std::unique_ptr<Expr>;
using Block = std::vector<Stmt>;

struct Arguments {
  std::vector<ExprPtr> positional;
  std::vector<std::pair<std::string, ExprPtr>> keywords;
  ExprPtr star;         ///< *args
  ExprPtr double_star;  ///< **kwargs
};

struct LiteralExpr {
  Value value;
};
struct NameExpr {
  SymbolId symbol;
  std::string name;
};
struct ListExpr {
  std::vector<ExprPtr> items;
  bool is_tuple;
};
struct DictExpr {
  std::vector<std::pair<ExprPtr, ExprPtr>> items;
};
struct AttributeExpr {
  ExprPtr object;
  std::string name;
};
struct SubscriptExpr {
  ExprPtr object;
  ExprPtr index;
};
struct SliceExpr {
  ExprPtr object;
  ExprPtr start;  ///< each of the three may be absent
  ExprPtr stop;
  ExprPtr step;
};
struct CallExpr {
  ExprPtr callee;
  Arguments arguments;
};
struct FilterExpr {
  ExprPtr input;  ///< nullptr: the text of a filter or set block
  std::string name;
  Arguments arguments;
};
struct TestExpr {
  ExprPtr input;
  std::string name;
  Arguments arguments;
};
struct NotExpr {
  ExprPtr operand;
};
struct SignExpr {
  bool negative;
  ExprPtr operand;
};
struct LogicalExpr {
  bool is_and;
  ExprPtr left;
  ExprPtr right;
};
enum class BinaryOp : std::uint8_t { kAdd, kSub, kMul, kDiv, kFloorDiv, kMod, kPow };
struct BinaryExpr {
  BinaryOp op;
  ExprPtr left;
  ExprPtr right;
};
struct ConcatExpr {
  std::vector<ExprPtr> parts;
};
enum class CompareOp : std::uint8_t { kEq, kNe, kLt, kLe, kGt, kGe, kIn, kNotIn };
struct CompareExpr {
  ExprPtr first;
  std::vector<std::pair<CompareOp, ExprPtr>> rest;
};
struct ConditionalExpr {
  ExprPtr test;
  ExprPtr then;
  ExprPtr otherwise;  ///< may be absent
};

using ExprNode =
    std::variant<LiteralExpr, NameExpr, ListExpr, DictExpr, AttributeExpr, SubscriptExpr, SliceExpr,
                 CallExpr, FilterExpr, TestExpr, NotExpr, SignExpr, LogicalExpr, BinaryExpr,
                 ConcatExpr, CompareExpr, ConditionalExpr>;

struct Expr {
  int line = 0;
  std::uint32_t depth = 1;  ///< of the tree below, bounded by the parser
  ExprNode node;
};

/// What `set` and `for` assign to: a name, an attribute of a namespace, or a tuple of targets.
struct Target {
  SymbolId symbol = 0;
  std::string name;
  std::string attribute;      ///< not empty: `name.attribute`
  std::vector<Target> tuple;  ///< not empty: unpacking
};

struct Parameter {
  SymbolId symbol;
  std::string name;
  ExprPtr default_value;  ///< may be absent
};

/// The signature and body of a macro, or of a call block's caller.
struct MacroCode {
  std::string name;
  std::vector<Parameter> parameters;
  Block body;
  SymbolId varargs_symbol;
  SymbolId kwargs_symbol;
  SymbolId caller_symbol;
  bool uses_varargs = false;
  bool uses_kwargs = false;
  bool uses_caller = false;
};

struct TextStmt {
  std::string text;
};
struct PrintStmt {
  ExprPtr value;
};
struct IfStmt {
  std::vector<std::pair<ExprPtr, Block>> branches;
  Block otherwise;
};
struct ForStmt {
  Target target;
  ExprPtr iterable;
  ExprPtr filter;  ///< may be absent
  Block body;
  Block otherwise;
  SymbolId loop_symbol;
};
struct SetStmt {
  Target target;
  ExprPtr value;
};
struct SetBlockStmt {
  Target target;
  ExprPtr filter;  ///< may be absent
  Block body;
};
struct MacroStmt {
  SymbolId symbol;
  std::shared_ptr<const MacroCode> code;
};
struct CallBlockStmt {
  ExprPtr call;  ///< a CallExpr
  std::shared_ptr<const MacroCode> caller;
};
struct FilterBlockStmt {
  ExprPtr filter;
  Block body;
};
struct WithStmt {
  std::vector<std::pair<Target, ExprPtr>> bindings;
  Block body;
};
struct BreakStmt {};
struct ContinueStmt {};

struct Stmt {
  int line = 0;
  std::variant<TextStmt, PrintStmt, IfStmt, ForStmt, SetStmt, SetBlockStmt, MacroStmt,
               CallBlockStmt, FilterBlockStmt, WithStmt, BreakStmt, ContinueStmt>
      node;
};

struct Template {
  Block body;
  std::vector<std::string> symbols;  ///< names by SymbolId
};

}  // namespace fastfd::jinja
