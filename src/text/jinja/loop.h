#pragma once

#include <cstddef>
#include <functional>
#include <optional>

#include "text/jinja/value.h"

namespace fastfd::jinja {

/// The `loop` variable and the iteration behind it. Items that fail the loop's `if` are skipped as
/// late as possible: only `loop.last`, `nextitem` and the length look ahead, as in Jinja.
class Loop {
 public:
  using Filter = std::function<bool(const Value&)>;

  Loop(ListPtr items, Filter filter);

  /// Goes to the next item; nullptr at the end.
  const Value* advance();

  /// The iteration is over: nothing may call the filter any more.
  void finish();

  std::size_t index() const { return index_; }  ///< from 1; 0 before the first item
  std::size_t length();
  std::uint32_t depth() const { return items_->depth + 1; }

  /// `loop.<name>`; nullopt for names that are not there.
  std::optional<Value> attribute(std::string_view name, const LoopPtr& self);

 private:
  Value cycle(const Args& args) const;
  Value changed(Args args);
  const Value* peek();

  ListPtr items_;
  Filter filter_;
  std::size_t next_ = 0;  ///< first item not looked at yet
  std::size_t index_ = 0;
  const Value* current_ = nullptr;
  const Value* before_ = nullptr;
  const Value* after_ = nullptr;     ///< looked ahead
  std::vector<const Value*> queue_;  ///< looked ahead for the length, in reverse
  bool collected_ = false;
  std::size_t length_ = 0;
  std::optional<Value> last_changed_;
};

}  // namespace fastfd::jinja
