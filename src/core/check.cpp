#include "fastfd/core/check.h"

#include <fmt/format.h>

namespace fastfd {

void fail_check(std::string_view what, const std::source_location& where) {
  throw InternalError(
      fmt::format("{}:{}: {}: {}", where.file_name(), where.line(), where.function_name(), what));
}

}  // namespace fastfd
