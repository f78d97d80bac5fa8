#pragma once

#include <stdexcept>
#include <string>
#include <string_view>

namespace fastfd {

/// A broken invariant of FastFD itself. What it says is for the people who develop it.
class InternalError : public std::logic_error {
 public:
  using std::logic_error::logic_error;
};

/// Where a check stands. std::source_location by other means: clang before 15 finds none in
/// libstdc++, and clang-tidy must be able to read every header.
struct SourceLocation {
  const char* file = "";
  int line = 0;
  const char* function = "";

  static constexpr SourceLocation current(const char* file = __builtin_FILE(),
                                          int line = __builtin_LINE(),
                                          const char* function = __builtin_FUNCTION()) {
    return {file, line, function};
  }
};

[[noreturn]] void fail_check(std::string_view what, const SourceLocation& where);

/// Throws InternalError naming file and line when `condition` is false. Always compiled in; use it
/// where the cost is nothing beside the work it guards.
inline void check(bool condition, std::string_view what,
                  const SourceLocation& where = SourceLocation::current()) {
  if (!condition) [[unlikely]] {
    fail_check(what, where);
  }
}

}  // namespace fastfd
