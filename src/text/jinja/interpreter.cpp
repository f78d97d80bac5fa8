#include "text/jinja/interpreter.h"

#include <fmt/format.h>

#include <algorithm>

#include "text/jinja/builtins.h"
#include "text/jinja/failure.h"
#include "text/jinja/interpreter_guards.h"

namespace fastfd::jinja {

Interpreter::Interpreter(const Template& code, const ChatTemplateLimits& limits, const Clock& clock)
    : code_(code), limits_(limits), clock_(clock) {}

/// Namespaces can hold each other, and macros' scopes the macros: undo the cycles.
Interpreter::~Interpreter() {
  for (const NamespacePtr& ns : namespaces_) {
    ns->attributes.clear();
  }
  for (const auto& scope : retained_scopes_) {
    scope->variables.clear();
  }
}

std::string Interpreter::render(const std::vector<std::pair<std::string, Value>>& variables) {
  for (const auto& [name, value] : variables) {
    const auto it = std::find(code_.symbols.begin(), code_.symbols.end(), name);
    if (it != code_.symbols.end()) {  // what the template does not name it cannot see
      globals_.set(static_cast<SymbolId>(it - code_.symbols.begin()), value);
    }
  }
  try {
    exec(code_.body);
  } catch (const Failure& failure) {
    throw ChatTemplateError(failure.kind(), line_, failure.what());
  }
  return std::move(output_);
}

void Interpreter::step() {
  if (++num_steps_ > limits_.max_steps) {
    fail_limit(fmt::format("rendering needs more than {} steps", limits_.max_steps));
  }
}

void Interpreter::require_bytes(std::size_t num_bytes) const {
  if (num_bytes > limits_.max_output_bytes) {
    fail_limit(fmt::format("text is larger than {} bytes", limits_.max_output_bytes));
  }
}

void Interpreter::charge(std::size_t num_bytes) {
  require_bytes(num_bytes);
  num_steps_ += num_bytes / 32;
  step();
}

void Interpreter::emit(std::string_view text) {
  charge(text.size());
  require_bytes(out_->size() + text.size());
  *out_ += text;
}

std::chrono::system_clock::time_point Interpreter::now() const {
  return clock_ ? clock_() : std::chrono::system_clock::now();
}

void Interpreter::Scope::set(SymbolId symbol, Value value) {
  for (auto& [key, existing] : variables) {
    if (key == symbol) {
      existing = std::move(value);
      return;
    }
  }
  variables.emplace_back(symbol, std::move(value));
}

const Value* Interpreter::lookup(SymbolId symbol) const {
  for (const Scope* scope = scope_; scope != nullptr; scope = scope->parent) {
    for (const auto& [key, value] : scope->variables) {
      if (key == symbol) {
        return &value;
      }
    }
  }
  return nullptr;
}

void Interpreter::assign(const Target& target, const Value& value) {
  if (!target.tuple.empty()) {
    const ListPtr items = iterate(value);
    if (items->items.size() != target.tuple.size()) {
      fail(fmt::format("cannot unpack {} values into {} variables", items->items.size(),
                       target.tuple.size()));
    }
    for (std::size_t i = 0; i < target.tuple.size(); ++i) {
      assign(target.tuple[i], items->items[i]);
    }
    return;
  }
  if (target.attribute.empty()) {
    scope_->set(target.symbol, value);
    return;
  }
  const Value* object = lookup(target.symbol);
  const auto* ns = object == nullptr ? nullptr : object->get_if<NamespacePtr>();
  if (ns == nullptr) {
    fail(fmt::format("cannot assign attribute '{}' on '{}', which is no namespace object",
                     target.attribute, target.name));
  }
  (*ns)->set(target.attribute, value);
}

Value Interpreter::make_namespace(std::vector<std::pair<std::string, Value>> attributes) {
  auto ns = std::make_shared<Namespace>();
  ns->attributes = std::move(attributes);
  namespaces_.push_back(ns);
  return NamespacePtr(std::move(ns));
}

Interpreter::Flow Interpreter::exec(const Block& block) {
  const DepthGuard depth(*this);
  for (const Stmt& stmt : block) {
    step();
    line_ = stmt.line;
    const Flow flow = std::visit([&](const auto& node) { return exec_node(node); }, stmt.node);
    if (flow != Flow::kNormal) {
      return flow;
    }
  }
  return Flow::kNormal;
}

std::string Interpreter::capture(const Block& block) {
  std::string text;
  const OutputGuard output(*this, text);
  const ScopeGuard scope(*this, scope_);
  exec(block);
  return text;
}

Interpreter::Flow Interpreter::exec_node(const TextStmt& node) {
  emit(node.text);
  return Flow::kNormal;
}

Interpreter::Flow Interpreter::exec_node(const PrintStmt& node) {
  const Value value = eval(*node.value);
  if (const std::string* text = value.string()) {
    emit(*text);
  } else {
    emit(to_string(value));
  }
  return Flow::kNormal;
}

Interpreter::Flow Interpreter::exec_node(const IfStmt& node) {
  for (const auto& [test, block] : node.branches) {
    if (is_true(eval(*test))) {
      return exec(block);
    }
  }
  return exec(node.otherwise);
}

Interpreter::Flow Interpreter::exec_node(const ForStmt& node) {
  ListPtr items = iterate(eval(*node.iterable));
  Loop::Filter filter;
  Scope* outer = scope_;
  if (node.filter) {
    // The condition sees the targets, but neither `loop` nor what the body sets.
    filter = [this, &node, outer](const Value& candidate) {
      const ScopeGuard scope(*this, outer);
      assign(node.target, candidate);
      return is_true(eval(*node.filter));
    };
  }
  const auto loop = std::make_shared<Loop>(std::move(items), std::move(filter));
  const LoopFinisher finisher(*loop);
  return run_loop(node, *loop, loop);
}

Interpreter::Flow Interpreter::run_loop(const ForStmt& node, Loop& loop, const LoopPtr& self) {
  bool any = false;
  while (const Value* item = loop.advance()) {
    any = true;
    step();
    const ScopeGuard scope(*this, scope_);
    assign(node.target, *item);
    scope_->set(node.loop_symbol, self);
    if (exec(node.body) == Flow::kBreak) {
      break;
    }
  }
  if (any) {
    return Flow::kNormal;
  }
  const ScopeGuard scope(*this, scope_);
  return exec(node.otherwise);
}

Interpreter::Flow Interpreter::exec_node(const SetStmt& node) {
  assign(node.target, eval(*node.value));
  return Flow::kNormal;
}

Interpreter::Flow Interpreter::exec_node(const SetBlockStmt& node) {
  assign(node.target, apply_block_filter(node.filter, capture(node.body)));
  return Flow::kNormal;
}

Interpreter::Flow Interpreter::exec_node(const FilterBlockStmt& node) {
  emit(to_string(apply_block_filter(node.filter, capture(node.body))));
  return Flow::kNormal;
}

Value Interpreter::apply_block_filter(const ExprPtr& filter, std::string text) {
  Value input(std::move(text));
  if (!filter) {
    return input;
  }
  const Value* outer = std::exchange(block_text_, &input);
  Value result = eval(*filter);
  block_text_ = outer;
  return result;
}

Interpreter::Flow Interpreter::exec_node(const MacroStmt& node) {
  scope_->set(node.symbol, make_macro(node.code));
  return Flow::kNormal;
}

Interpreter::Flow Interpreter::exec_node(const CallBlockStmt& node) {
  const auto& call_node = std::get<CallExpr>(node.call->node);
  Args args = eval_args(call_node.arguments);
  args.keywords.emplace_back("caller", make_macro(node.caller));
  emit(to_string(call_expr(call_node, std::move(args))));
  return Flow::kNormal;
}

Interpreter::Flow Interpreter::exec_node(const WithStmt& node) {
  std::vector<Value> values;
  for (const auto& [target, value] : node.bindings) {
    values.push_back(eval(*value));
  }
  const ScopeGuard scope(*this, scope_);
  for (std::size_t i = 0; i < values.size(); ++i) {
    assign(node.bindings[i].first, values[i]);
  }
  return exec(node.body);
}

Interpreter::Flow Interpreter::exec_node(const BreakStmt& /*node*/) { return Flow::kBreak; }
Interpreter::Flow Interpreter::exec_node(const ContinueStmt& /*node*/) { return Flow::kContinue; }

FunctionPtr Interpreter::make_macro(std::shared_ptr<const MacroCode> code) {
  for (Scope* scope = scope_; scope != nullptr && !scope->captured; scope = scope->parent) {
    scope->captured = true;
  }
  auto function = std::make_shared<Function>();
  function->name = code->name;
  function->is_macro = true;
  function->call = [this, code = std::move(code), definition = scope_](Interpreter&,
                                                                       const Args& args) {
    return call_macro(*code, definition, args);
  };
  return function;
}

Value Interpreter::call_macro(const MacroCode& code, Scope* definition, const Args& args) {
  const DepthGuard depth(*this);
  std::string text;
  const OutputGuard output(*this, text);
  const ScopeGuard scope(*this, definition);
  bind_parameters(code, args);
  exec(code.body);
  return text;
}

void Interpreter::bind_parameters(const MacroCode& code, const Args& args) {
  std::vector<bool> is_taken(args.keywords.size(), false);
  const auto take_keyword = [&](std::string_view name) -> const Value* {
    for (std::size_t i = 0; i < args.keywords.size(); ++i) {
      if (args.keywords[i].first == name && !is_taken[i]) {
        is_taken[i] = true;
        return &args.keywords[i].second;
      }
    }
    return nullptr;
  };
  const std::size_t num_positional = std::min(args.positional.size(), code.parameters.size());
  bool takes_caller = false;
  for (std::size_t i = 0; i < code.parameters.size(); ++i) {
    const Parameter& parameter = code.parameters[i];
    takes_caller |= parameter.name == "caller";
    if (i < num_positional) {
      scope_->set(parameter.symbol, args.positional[i]);
    } else if (const Value* value = take_keyword(parameter.name)) {
      scope_->set(parameter.symbol, *value);
    } else if (parameter.default_value) {
      scope_->set(parameter.symbol, eval(*parameter.default_value));
    } else {
      scope_->set(parameter.symbol,
                  Value::undefined(fmt::format("parameter '{}' was not provided", parameter.name)));
    }
  }
  if (code.uses_caller && !takes_caller) {
    const Value* caller = take_keyword("caller");
    scope_->set(code.caller_symbol,
                caller != nullptr ? *caller : Value::undefined("No caller defined"));
  }
  std::vector<std::pair<Value, Value>> rest;
  for (std::size_t i = 0; i < args.keywords.size(); ++i) {
    if (!is_taken[i]) {
      rest.emplace_back(Value(args.keywords[i].first), args.keywords[i].second);
    }
  }
  if (code.uses_kwargs) {
    scope_->set(code.kwargs_symbol, make_dict(std::move(rest)));
  } else if (!rest.empty()) {
    fail(fmt::format("macro '{}' takes no keyword argument '{}'", code.name,
                     to_string(rest.front().first)));
  }
  if (code.uses_varargs) {
    scope_->set(code.varargs_symbol,
                make_list({args.positional.begin() + static_cast<std::ptrdiff_t>(num_positional),
                           args.positional.end()},
                          List::Kind::kTuple));
  } else if (args.positional.size() > num_positional) {
    fail(fmt::format("macro '{}' takes not more than {} argument(s)", code.name,
                     code.parameters.size()));
  }
}

}  // namespace fastfd::jinja
