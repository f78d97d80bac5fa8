#pragma once

#include <source_location>
#include <stdexcept>
#include <string>
#include <string_view>

namespace fastfd {

/// A broken invariant of FastFD itself. What it says is for the people who develop it.
class InternalError : public std::logic_error {
 public:
  using std::logic_error::logic_error;
};

[[noreturn]] void fail_check(std::string_view what, const std::source_location& where);

/// Throws InternalError naming file and line when `condition` is false. Always compiled in; use it
/// where the cost is nothing beside the work it guards.
inline void check(bool condition, std::string_view what,
                  const std::source_location& where = std::source_location::current()) {
  if (!condition) [[unlikely]] {
    fail_check(what, where);
  }
}

}  // namespace fastfd
