#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "fastfd/text/chat_template.h"
#include "text/jinja/ast.h"
#include "text/jinja/loop.h"
#include "text/jinja/value.h"

namespace fastfd::jinja {

/// Renders one template once. Walks the tree; every node costs a step of the limits, every copied
/// string or list more.
class Interpreter {
 public:
  using Clock = std::function<std::chrono::system_clock::time_point()>;

  Interpreter(const Template& code, const ChatTemplateLimits& limits, const Clock& clock);
  ~Interpreter();
  Interpreter(const Interpreter&) = delete;
  Interpreter& operator=(const Interpreter&) = delete;

  /// Throws ChatTemplateError.
  std::string render(const std::vector<std::pair<std::string, Value>>& variables);

  // What filters, tests and functions need:

  /// Counts work on `num_bytes` of text (or list entries of 16 bytes) and refuses results that are
  /// too large.
  void charge(std::size_t num_bytes);
  /// Refuses a text of that size.
  void require_bytes(std::size_t num_bytes) const;
  Value call_filter(std::string_view name, const Value& input, const Args& args);
  bool call_test(std::string_view name, const Value& input, const Args& args);
  Value call(const Value& callee, Args args);
  /// `object.name` and `object[key]`.
  Value attribute(const Value& object, std::string_view name);
  Value item(const Value& object, const Value& key);
  Value make_namespace(std::vector<std::pair<std::string, Value>> attributes);
  std::chrono::system_clock::time_point now() const;

 private:
  struct Scope {
    Scope* parent = nullptr;
    bool captured = false;  ///< a macro defined below refers to it
    std::vector<std::pair<SymbolId, Value>> variables;

    void set(SymbolId symbol, Value value);
  };
  class ScopeGuard;
  class DepthGuard;
  class OutputGuard;
  enum class Flow : std::uint8_t { kNormal, kBreak, kContinue };

  Value eval(const Expr& expr);
  Value eval_node(const LiteralExpr& node);
  Value eval_node(const NameExpr& node);
  Value eval_node(const ListExpr& node);
  Value eval_node(const DictExpr& node);
  Value eval_node(const AttributeExpr& node);
  Value eval_node(const SubscriptExpr& node);
  Value eval_node(const SliceExpr& node);
  Value eval_node(const CallExpr& node);
  Value eval_node(const FilterExpr& node);
  Value eval_node(const TestExpr& node);
  Value eval_node(const NotExpr& node);
  Value eval_node(const SignExpr& node);
  Value eval_node(const LogicalExpr& node);
  Value eval_node(const BinaryExpr& node);
  Value eval_node(const ConcatExpr& node);
  Value eval_node(const CompareExpr& node);
  Value eval_node(const ConditionalExpr& node);
  Value call_expr(const CallExpr& node, Args args);
  Args eval_args(const Arguments& arguments);
  Value apply_block_filter(const ExprPtr& filter, std::string text);

  Flow exec(const Block& block);
  Flow exec_node(const TextStmt& node);
  Flow exec_node(const PrintStmt& node);
  Flow exec_node(const IfStmt& node);
  Flow exec_node(const ForStmt& node);
  Flow exec_node(const SetStmt& node);
  Flow exec_node(const SetBlockStmt& node);
  Flow exec_node(const MacroStmt& node);
  Flow exec_node(const CallBlockStmt& node);
  Flow exec_node(const FilterBlockStmt& node);
  Flow exec_node(const WithStmt& node);
  Flow exec_node(const BreakStmt& node);
  Flow exec_node(const ContinueStmt& node);
  Flow run_loop(const ForStmt& node, Loop& loop, const LoopPtr& self);
  /// Output of a block as a string, in a scope of its own.
  std::string capture(const Block& block);

  const Value* lookup(SymbolId symbol) const;
  void assign(const Target& target, const Value& value);
  FunctionPtr make_macro(std::shared_ptr<const MacroCode> code);
  Value call_macro(const MacroCode& code, Scope* definition, const Args& args);
  void bind_parameters(const MacroCode& code, const Args& args);

  void emit(std::string_view text);
  void step();

  const Template& code_;
  const ChatTemplateLimits& limits_;
  const Clock& clock_;
  std::uint64_t num_steps_ = 0;
  std::uint32_t depth_ = 0;
  int line_ = 1;
  std::string output_;
  std::string* out_ = &output_;
  Scope globals_;
  Scope* scope_ = &globals_;
  std::vector<std::unique_ptr<Scope>> retained_scopes_;
  std::vector<NamespacePtr> namespaces_;
  const Value* block_text_ = nullptr;  ///< input of a FilterExpr without one
};

}  // namespace fastfd::jinja
