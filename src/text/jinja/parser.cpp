#include "text/jinja/parser.h"

#include <unordered_map>

#include "text/jinja/expression_parser.h"

namespace fastfd::jinja {
namespace {

constexpr int kMaxBlockDepth = 60;

/// Statements; the grammar is that of Jinja 3.1's own parser.
class Parser : public ExpressionParser {
 public:
  explicit Parser(std::string_view source) : ExpressionParser(source) {}

  Template run() {
    Template result;
    result.body = parse_body({});
    result.symbols = take_symbols();
    return result;
  }

 private:
  using Ends = std::vector<std::string_view>;

  /// Statements up to a block tag that begins with one of `ends`, whose name is then current. With
  /// no ends: up to the end of the template.
  Block parse_body(const Ends& ends) {
    if (++block_depth_ > kMaxBlockDepth) {
      fail_here("blocks are nested too deep");
    }
    const int opened = line();
    Block body;
    for (;;) {
      if (is(TokenKind::kEnd)) {
        if (!ends.empty()) {
          fail_at(opened, fmt::format("block is not closed; missing '{}'", ends.back()));
        }
        break;
      }
      if (is(TokenKind::kData)) {
        body.push_back({line(), TextStmt{next().text}});
      } else if (is(TokenKind::kVariableBegin)) {
        const int at = next().line;
        ExprPtr value = parse_tuple();
        expect(TokenKind::kVariableEnd, "}}");
        body.push_back({at, PrintStmt{std::move(value)}});
      } else {
        expect(TokenKind::kBlockBegin, "{%");
        if (!is(TokenKind::kName)) {
          fail_here("tag name expected");
        }
        if (std::find(ends.begin(), ends.end(), current().text) != ends.end()) {
          break;
        }
        parse_statement(body);
        expect(TokenKind::kBlockEnd, "%}");
      }
    }
    --block_depth_;
    return body;
  }

  /// Closes the opening tag, then parses up to one of `ends` and returns which it was.
  std::string parse_block(const Ends& ends, Block& body) {
    skip_operator(":");
    expect(TokenKind::kBlockEnd, "%}");
    body = parse_body(ends);
    return next().text;
  }

  void parse_statement(Block& body) {
    const int at = line();
    const std::string tag = next().text;
    if (tag == "if") {
      body.push_back({at, parse_if()});
    } else if (tag == "for") {
      body.push_back({at, parse_for()});
    } else if (tag == "set") {
      parse_set(at, body);
    } else if (tag == "macro") {
      body.push_back({at, parse_macro()});
    } else if (tag == "call") {
      body.push_back({at, parse_call_block()});
    } else if (tag == "filter") {
      ExprPtr filter = parse_filter_chain(nullptr, /*first_without_pipe=*/true);
      Block inner;
      parse_block({"endfilter"}, inner);
      body.push_back({at, FilterBlockStmt{std::move(filter), std::move(inner)}});
    } else if (tag == "with") {
      body.push_back({at, parse_with()});
    } else if (tag == "print") {
      body.push_back({at, PrintStmt{parse_tuple()}});
    } else if (tag == "break" || tag == "continue") {
      if (loop_depth_ == 0) {
        fail_at(at, fmt::format("'{}' outside of a loop", tag));
      }
      if (tag == "break") {
        body.push_back({at, BreakStmt{}});
      } else {
        body.push_back({at, ContinueStmt{}});
      }
    } else if (tag == "generation") {
      // Marks assistant text for training; prints its body.
      Block inner;
      parse_block({"endgeneration"}, inner);
      body.push_back({at, WithStmt{{}, std::move(inner)}});
    } else {
      fail_at(at, fmt::format("tag '{}' is unknown or not supported; supported are if, for, set, "
                              "macro, call, filter, with, print, break, continue, generation, raw",
                              tag));
    }
  }

  IfStmt parse_if() {
    IfStmt result;
    for (;;) {
      ExprPtr test = parse_tuple({.with_condition = false});
      Block block;
      const std::string end = parse_block({"elif", "else", "endif"}, block);
      result.branches.emplace_back(std::move(test), std::move(block));
      if (end == "else") {
        parse_block({"endif"}, result.otherwise);
      }
      if (end != "elif") {
        return result;
      }
    }
  }

  ForStmt parse_for() {
    ForStmt result;
    result.target = parse_target(/*with_attribute=*/false);
    expect_name("in");
    result.iterable = parse_tuple({.with_condition = false, .end_name = "recursive"});
    if (skip_name("if")) {
      result.filter = parse_expression();
    }
    if (is_name("recursive")) {
      fail_here("recursive loops are not supported");
    }
    result.loop_symbol = symbol_of("loop");
    ++loop_depth_;
    const std::string end = parse_block({"endfor", "else"}, result.body);
    --loop_depth_;
    if (end == "else") {
      parse_block({"endfor"}, result.otherwise);
    }
    return result;
  }

  void parse_set(int at, Block& body) {
    Target target = parse_target(/*with_attribute=*/true);
    if (skip_operator("=")) {
      body.push_back({at, SetStmt{std::move(target), parse_tuple()}});
      return;
    }
    ExprPtr filter = parse_filter_chain(nullptr, /*first_without_pipe=*/false);
    Block inner;
    parse_block({"endset"}, inner);
    body.push_back({at, SetBlockStmt{std::move(target), std::move(filter), std::move(inner)}});
  }

  MacroStmt parse_macro() {
    MacroStmt result;
    const std::string name = expect(TokenKind::kName, "the macro's name").text;
    result.symbol = symbol_of(name);
    result.code = parse_macro_code(name, "endmacro");
    return result;
  }

  std::shared_ptr<const MacroCode> parse_macro_code(const std::string& name, std::string_view end) {
    auto code = std::make_shared<MacroCode>();
    code->name = name;
    if (is_operator("(")) {
      parse_signature(*code);
    }
    code->varargs_symbol = symbol_of("varargs");
    code->kwargs_symbol = symbol_of("kwargs");
    code->caller_symbol = symbol_of("caller");
    parse_macro_body(*code, end);
    return code;
  }

  void parse_macro_body(MacroCode& code, std::string_view end) {
    const int outer_loops = std::exchange(loop_depth_, 0);
    const SymbolUse outer_use = std::exchange(use_, {});
    parse_block({end}, code.body);
    code.uses_varargs = use_.varargs;
    code.uses_kwargs = use_.kwargs;
    code.uses_caller = use_.caller;
    use_ = {outer_use.varargs || use_.varargs, outer_use.kwargs || use_.kwargs,
            outer_use.caller || use_.caller};
    loop_depth_ = outer_loops;
  }

  void parse_signature(MacroCode& code) {
    next();  // "("
    while (!is_operator(")")) {
      if (!code.parameters.empty()) {
        expect_operator(",");
        if (is_operator(")")) {
          break;
        }
      }
      Parameter parameter;
      parameter.name = expect(TokenKind::kName, "a parameter's name").text;
      parameter.symbol = symbol_of(parameter.name);
      if (skip_operator("=")) {
        parameter.default_value = parse_expression();
      } else if (!code.parameters.empty() && code.parameters.back().default_value) {
        fail_here("non-default argument follows default argument");
      }
      code.parameters.push_back(std::move(parameter));
    }
    expect_operator(")");
  }

  CallBlockStmt parse_call_block() {
    auto caller = std::make_shared<MacroCode>();
    caller->name = "caller";
    if (is_operator("(")) {
      parse_signature(*caller);
    }
    CallBlockStmt result;
    result.call = parse_expression();
    if (!std::holds_alternative<CallExpr>(result.call->node)) {
      fail_here("expected a call");
    }
    caller->varargs_symbol = symbol_of("varargs");
    caller->kwargs_symbol = symbol_of("kwargs");
    caller->caller_symbol = symbol_of("caller");
    parse_macro_body(*caller, "endcall");
    result.caller = std::move(caller);
    return result;
  }

  WithStmt parse_with() {
    WithStmt result;
    while (!is(TokenKind::kBlockEnd)) {
      if (!result.bindings.empty()) {
        expect_operator(",");
      }
      Target target = parse_target(/*with_attribute=*/false);
      expect_operator("=");
      result.bindings.emplace_back(std::move(target), parse_expression());
    }
    parse_block({"endwith"}, result.body);
    return result;
  }

  int block_depth_ = 0;
  int loop_depth_ = 0;
};

}  // namespace

Template parse_template(std::string_view source) { return Parser(source).run(); }

}  // namespace fastfd::jinja
