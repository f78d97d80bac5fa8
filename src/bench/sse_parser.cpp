#include "bench/sse_parser.h"

#include <algorithm>

namespace fastfd::bench {

bool SseParser::end_line() {
  std::string_view line = line_;
  constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";
  if (first_line_ && line.rfind(kByteOrderMark, 0) == 0) {
    line.remove_prefix(kByteOrderMark.size());
  }
  first_line_ = false;
  const bool is_blank = line.empty();
  constexpr std::string_view kField = "data";
  if (line.rfind(kField, 0) == 0 && (line.size() == kField.size() || line[kField.size()] == ':')) {
    line.remove_prefix(std::min(line.size(), kField.size() + 1));
    if (!line.empty() && line.front() == ' ') {
      line.remove_prefix(1);
    }
    if (has_data_) {
      data_ += '\n';
    }
    data_ += line;
    has_data_ = true;
  }
  line_.clear();
  return is_blank && has_data_;
}

}  // namespace fastfd::bench
