#include "text/jinja/loop.h"

#include <algorithm>

#include "text/jinja/failure.h"

namespace fastfd::jinja {

Loop::Loop(ListPtr items, Filter filter) : items_(std::move(items)), filter_(std::move(filter)) {}

const Value* Loop::peek() {
  if (after_ != nullptr) {
    return after_;
  }
  if (collected_) {
    if (!queue_.empty()) {
      after_ = queue_.back();
      queue_.pop_back();
    }
    return after_;
  }
  while (next_ < items_->items.size()) {
    const Value& candidate = items_->items[next_++];
    if (!filter_ || filter_(candidate)) {
      after_ = &candidate;
      return after_;
    }
  }
  return nullptr;
}

const Value* Loop::advance() {
  const Value* item = peek();
  after_ = nullptr;
  if (item != nullptr) {
    ++index_;
    before_ = current_;
    current_ = item;
  }
  return item;
}

void Loop::finish() {
  filter_ = nullptr;
  next_ = items_->items.size();
  last_changed_.reset();  // may hold a function that holds this loop
}

std::size_t Loop::length() {
  if (!filter_ && !collected_) {
    return items_->items.size();
  }
  if (!collected_) {
    const Value* ahead = after_;
    after_ = nullptr;
    std::vector<const Value*> rest;
    while (const Value* item = peek()) {
      rest.push_back(item);
      after_ = nullptr;
    }
    length_ = index_ + rest.size() + (ahead != nullptr ? 1 : 0);
    std::reverse(rest.begin(), rest.end());
    queue_ = std::move(rest);
    after_ = ahead;
    collected_ = true;
  }
  return length_;
}

std::optional<Value> Loop::attribute(std::string_view name, const LoopPtr& self) {
  const auto integer = [](std::size_t n) { return Value(static_cast<std::int64_t>(n)); };
  if (name == "index") {
    return integer(index_);
  }
  if (name == "index0") {
    return integer(index_ - 1);
  }
  if (name == "first") {
    return Value(index_ == 1);
  }
  if (name == "last") {
    return Value(peek() == nullptr);
  }
  if (name == "length") {
    return integer(length());
  }
  if (name == "revindex") {
    return integer(length() - index_ + 1);
  }
  if (name == "revindex0") {
    return integer(length() - index_);
  }
  if (name == "depth" || name == "depth0") {  // of recursive loops, which are not supported
    return integer(name == "depth" ? 1 : 0);
  }
  if (name == "previtem") {
    return before_ == nullptr ? Value::undefined("there is no previous item") : *before_;
  }
  if (name == "nextitem") {
    const Value* next = peek();
    return next == nullptr ? Value::undefined("there is no next item") : *next;
  }
  if (name == "cycle" || name == "changed") {
    auto function = std::make_shared<Function>();
    function->name = name;
    function->depth = depth() + 1;
    const bool is_cycle = name == "cycle";
    function->call = [self, is_cycle](Interpreter&, Args args) {
      return is_cycle ? self->cycle(args) : self->changed(std::move(args));
    };
    return Value(FunctionPtr(std::move(function)));
  }
  return std::nullopt;
}

Value Loop::cycle(const Args& args) const {
  if (args.positional.empty()) {
    fail("no items for cycling given");
  }
  return args.positional[(index_ - 1) % args.positional.size()];
}

Value Loop::changed(Args args) {
  Value value = make_list(std::move(args.positional), List::Kind::kTuple);
  if (last_changed_ && equals(*last_changed_, value)) {
    return false;
  }
  last_changed_ = std::move(value);
  return true;
}

}  // namespace fastfd::jinja
