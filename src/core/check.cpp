#include "fastfd/core/check.h"

#include <fmt/format.h>

namespace fastfd {

void fail_check(std::string_view what, const SourceLocation& where) {
  throw InternalError(fmt::format("{}:{}: {}: {}", where.file, where.line, where.function, what));
}

}  // namespace fastfd
