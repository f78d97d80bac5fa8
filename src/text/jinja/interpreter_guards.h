#pragma once

#include <fmt/format.h>

#include <memory>
#include <string>
#include <utility>

#include "text/jinja/failure.h"
#include "text/jinja/interpreter.h"

namespace fastfd::jinja {

/// A scope of its own below `parent`, for as long as the guard lives, or to the end of the
/// rendering if a macro was defined in it.
class Interpreter::ScopeGuard {
 public:
  ScopeGuard(Interpreter& interpreter, Scope* parent)
      : interpreter_(interpreter), outer_(interpreter.scope_), own_(std::make_unique<Scope>()) {
    own_->parent = parent;
    interpreter_.scope_ = own_.get();
  }
  ~ScopeGuard() {
    interpreter_.scope_ = outer_;
    if (own_->captured) {
      interpreter_.retained_scopes_.push_back(std::move(own_));
    }
  }
  ScopeGuard(const ScopeGuard&) = delete;
  ScopeGuard& operator=(const ScopeGuard&) = delete;

 private:
  Interpreter& interpreter_;
  Scope* outer_;
  std::unique_ptr<Scope> own_;
};

/// Output goes to `text` while the guard lives.
class Interpreter::OutputGuard {
 public:
  OutputGuard(Interpreter& interpreter, std::string& text)
      : interpreter_(interpreter), outer_(std::exchange(interpreter.out_, &text)) {}
  ~OutputGuard() { interpreter_.out_ = outer_; }
  OutputGuard(const OutputGuard&) = delete;
  OutputGuard& operator=(const OutputGuard&) = delete;

 private:
  Interpreter& interpreter_;
  std::string* outer_;
};

/// One level of the recursion; refuses more than the stack can take.
class Interpreter::DepthGuard {
 public:
  explicit DepthGuard(Interpreter& interpreter) : interpreter_(interpreter) {
    if (++interpreter_.depth_ > interpreter_.limits_.max_depth) {
      --interpreter_.depth_;
      fail_limit(fmt::format("blocks, expressions and macro calls are nested deeper than {}",
                             interpreter_.limits_.max_depth));
    }
  }
  ~DepthGuard() { --interpreter_.depth_; }
  DepthGuard(const DepthGuard&) = delete;
  DepthGuard& operator=(const DepthGuard&) = delete;

 private:
  Interpreter& interpreter_;
};

class LoopFinisher {
 public:
  explicit LoopFinisher(Loop& loop) : loop_(loop) {}
  ~LoopFinisher() { loop_.finish(); }
  LoopFinisher(const LoopFinisher&) = delete;
  LoopFinisher& operator=(const LoopFinisher&) = delete;

 private:
  Loop& loop_;
};

}  // namespace fastfd::jinja
