#include <fmt/format.h>

#include <algorithm>

#include "text/jinja/builtins.h"
#include "text/jinja/failure.h"
#include "text/jinja/interpreter.h"
#include "text/jinja/interpreter_guards.h"

namespace fastfd::jinja {

Value Interpreter::eval(const Expr& expr) {
  const DepthGuard depth(*this);
  step();
  line_ = expr.line;
  return std::visit([&](const auto& node) { return eval_node(node); }, expr.node);
}

Value Interpreter::eval_node(const LiteralExpr& node) { return node.value; }

Value Interpreter::eval_node(const NameExpr& node) {
  if (const Value* value = lookup(node.symbol)) {
    return *value;
  }
  if (auto global = find_global(node.name)) {
    return std::move(*global);
  }
  return Value::undefined(fmt::format("'{}' is undefined", node.name));
}

Value Interpreter::eval_node(const ListExpr& node) {
  std::vector<Value> items;
  items.reserve(node.items.size());
  for (const ExprPtr& item : node.items) {
    items.push_back(eval(*item));
  }
  return make_list(std::move(items), node.is_tuple ? List::Kind::kTuple : List::Kind::kList);
}

Value Interpreter::eval_node(const DictExpr& node) {
  std::vector<std::pair<Value, Value>> items;
  items.reserve(node.items.size());
  for (const auto& [key, value] : node.items) {
    Value evaluated_key = eval(*key);
    items.emplace_back(std::move(evaluated_key), eval(*value));
  }
  return make_dict(std::move(items));
}

Value Interpreter::eval_node(const AttributeExpr& node) {
  return attribute(eval(*node.object), node.name);
}

Value Interpreter::eval_node(const SubscriptExpr& node) {
  const Value object = eval(*node.object);
  return item(object, eval(*node.index));
}

Value Interpreter::eval_node(const SliceExpr& node) {
  const Value object = eval(*node.object);
  std::optional<Value> bounds[3];
  const ExprPtr* exprs[3] = {&node.start, &node.stop, &node.step};
  for (std::size_t i = 0; i < 3; ++i) {
    if (*exprs[i]) {
      bounds[i] = eval(**exprs[i]);
    }
  }
  const auto pointer = [&](std::size_t i) { return bounds[i] ? &*bounds[i] : nullptr; };
  return slice(*this, object, pointer(0), pointer(1), pointer(2));
}

Args Interpreter::eval_args(const Arguments& arguments) {
  Args args;
  args.positional.reserve(arguments.positional.size());
  for (const ExprPtr& argument : arguments.positional) {
    args.positional.push_back(eval(*argument));
  }
  for (const auto& [name, argument] : arguments.keywords) {
    args.keywords.emplace_back(name, eval(*argument));
  }
  if (arguments.star) {
    const ListPtr items = iterate(eval(*arguments.star));
    args.positional.insert(args.positional.end(), items->items.begin(), items->items.end());
  }
  if (arguments.double_star) {
    const Value mapping = eval(*arguments.double_star);
    if (mapping.dict() == nullptr) {
      fail(fmt::format("argument after ** must be a mapping, not {}", type_name(mapping)));
    }
    for (const auto& [key, value] : mapping.dict()->items) {
      if (!key.is_string()) {
        fail("keywords must be strings");
      }
      args.keywords.emplace_back(*key.string(), value);
    }
  }
  charge(args.positional.size() * sizeof(Value));
  return args;
}

Value Interpreter::eval_node(const CallExpr& node) {
  // Python evaluates the callee first; only its errors could tell the difference.
  return call_expr(node, eval_args(node.arguments));
}

/// Methods are called without making a function object of them first.
Value Interpreter::call_expr(const CallExpr& node, Args args) {
  if (const auto* method = std::get_if<AttributeExpr>(&node.callee->node)) {
    const Value object = eval(*method->object);
    if (has_method(object, method->name)) {
      return call_method(*this, object, method->name, args);
    }
    return call(attribute(object, method->name), std::move(args));
  }
  return call(eval(*node.callee), std::move(args));
}

Value Interpreter::call(const Value& callee, Args args) {
  require_defined(callee);
  const auto* function = callee.get_if<FunctionPtr>();
  if (function == nullptr) {
    fail(fmt::format("'{}' object is not callable", type_name(callee)));
  }
  return (*function)->call(*this, std::move(args));
}

Value Interpreter::eval_node(const FilterExpr& node) {
  const Value input = node.input ? eval(*node.input) : *block_text_;
  return call_filter(node.name, input, eval_args(node.arguments));
}

Value Interpreter::call_filter(std::string_view name, const Value& input, const Args& args) {
  FilterFunction filter = find_filter(name);
  if (filter == nullptr) {
    filter = find_sequence_filter(name);
  }
  if (filter == nullptr) {
    fail(fmt::format("filter '{}' is unknown or not supported", name));
  }
  step();
  if (const std::string* text = input.string()) {
    charge(text->size());
  } else if (const List* list = input.list()) {
    charge(list->items.size() * sizeof(Value));
  }
  return filter(*this, input, args);
}

Value Interpreter::eval_node(const TestExpr& node) {
  const Value input = eval(*node.input);
  return call_test(node.name, input, eval_args(node.arguments));
}

bool Interpreter::call_test(std::string_view name, const Value& input, const Args& args) {
  const TestFunction test = find_test(name);
  if (test == nullptr) {
    fail(fmt::format("test '{}' is unknown or not supported", name));
  }
  step();
  return test(*this, input, args);
}

Value Interpreter::eval_node(const NotExpr& node) { return !is_true(eval(*node.operand)); }

Value Interpreter::eval_node(const SignExpr& node) {
  return negate(eval(*node.operand), node.negative);
}

Value Interpreter::eval_node(const LogicalExpr& node) {
  Value left = eval(*node.left);
  return is_true(left) == node.is_and ? eval(*node.right) : left;
}

Value Interpreter::eval_node(const BinaryExpr& node) {
  const Value left = eval(*node.left);
  return binary(*this, node.op, left, eval(*node.right));
}

Value Interpreter::eval_node(const ConcatExpr& node) {
  std::string text;
  for (const ExprPtr& part : node.parts) {
    append_string(text, eval(*part));
    require_bytes(text.size());
  }
  charge(text.size());
  return text;
}

Value Interpreter::eval_node(const CompareExpr& node) {
  static constexpr std::string_view kNames[] = {"==", "!=", "<", "<=", ">", ">=", "in", "not in"};
  Value left = eval(*node.first);
  for (const auto& part : node.rest) {
    const CompareOp op = part.first;
    Value right = eval(*part.second);
    if (const std::string* text = right.string()) {
      charge(text->size());
    } else if (const List* list = right.list()) {
      charge(list->items.size() * sizeof(Value));
    }
    bool holds = false;
    const auto order = [&] { return compare(left, right, kNames[static_cast<std::size_t>(op)]); };
    switch (op) {
      case CompareOp::kEq:
        holds = equals(left, right);
        break;
      case CompareOp::kNe:
        holds = !equals(left, right);
        break;
      case CompareOp::kLt:
        holds = order() < 0;
        break;
      case CompareOp::kLe:
        holds = order() <= 0;
        break;
      case CompareOp::kGt:
        holds = order() > 0;
        break;
      case CompareOp::kGe:
        holds = order() >= 0;
        break;
      case CompareOp::kIn:
        holds = contains(right, left);
        break;
      case CompareOp::kNotIn:
        holds = !contains(right, left);
        break;
    }
    if (!holds) {
      return false;
    }
    left = std::move(right);
  }
  return true;
}

Value Interpreter::eval_node(const ConditionalExpr& node) {
  if (is_true(eval(*node.test))) {
    return eval(*node.then);
  }
  if (node.otherwise) {
    return eval(*node.otherwise);
  }
  return Value::undefined(
      "the inline if-expression evaluated to false and no else section was defined");
}

namespace {

Value missing_member(const Value& object, const Value& key) {
  if (object.is_none()) {
    return Value::undefined(fmt::format("'None' has no attribute {}", repr(key)));
  }
  return Value::undefined(fmt::format("'{} object' has no {} {}", type_name(object),
                                      key.is_string() ? "attribute" : "element", repr(key)));
}

Value bound_method(const Value& object, std::string_view name) {
  auto function = std::make_shared<Function>();
  function->name = name;
  function->depth = object.depth() + 1;
  function->call = [object, name = std::string(name)](Interpreter& interpreter, const Args& args) {
    return call_method(interpreter, object, name, args);
  };
  return FunctionPtr(std::move(function));
}

}  // namespace

Value Interpreter::attribute(const Value& object, std::string_view name) {
  require_defined(object);
  if (has_method(object, name)) {
    return bound_method(object, name);
  }
  if (is_unsafe_attribute(object, name)) {
    return Value::undefined(
        fmt::format("access to attribute '{}' of '{}' object is unsafe", name, type_name(object)));
  }
  if (const auto* ns = object.get_if<NamespacePtr>()) {
    if (const Value* value = (*ns)->find(name)) {
      return *value;
    }
  } else if (const auto* loop = object.get_if<LoopPtr>()) {
    if (auto value = (*loop)->attribute(name, *loop)) {
      return std::move(*value);
    }
  } else if (const Dict* dict = object.dict()) {
    if (const Value* value = dict->find(name)) {
      return *value;
    }
  }
  return missing_member(object, Value(name));
}

Value Interpreter::item(const Value& object, const Value& key) {
  require_defined(object);
  if (const Dict* dict = object.dict()) {
    if (const Value* value = dict->find(key)) {
      return *value;
    }
  }
  if (const auto index = key.integer()) {
    if (auto value = element(object, *index)) {
      return std::move(*value);
    }
  }
  if (const std::string* name = key.string()) {
    if (object.dict() == nullptr || has_method(object, *name) ||
        is_unsafe_attribute(object, *name)) {
      return attribute(object, *name);
    }
  }
  return missing_member(object, key);
}

}  // namespace fastfd::jinja
