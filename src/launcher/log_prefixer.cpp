#include "launcher/log_prefixer.h"

namespace fastfd::launcher {

void LogPrefixer::feed(std::string_view bytes) {
  while (!bytes.empty()) {
    const std::size_t newline = bytes.find('\n');
    if (newline == std::string_view::npos) {
      partial_.append(bytes);
      // A child that never writes a newline must not make the launcher grow without bound.
      if (partial_.size() >= kMaxLineBytes) {
        flush();
      }
      return;
    }
    if (partial_.empty()) {
      emit(bytes.substr(0, newline));
    } else {
      partial_.append(bytes.substr(0, newline));
      emit(partial_);
      partial_.clear();
    }
    bytes.remove_prefix(newline + 1);
  }
}

void LogPrefixer::flush() {
  if (!partial_.empty()) {
    emit(partial_);
    partial_.clear();
  }
}

std::string LogPrefixer::tail() const {
  std::string joined;
  for (const std::string& line : tail_) {
    if (!joined.empty()) {
      joined += '\n';
    }
    joined += line;
  }
  return joined;
}

void LogPrefixer::emit(std::string_view line) {
  if (!line.empty() && line.back() == '\r') {
    line.remove_suffix(1);
  }
  // "2026-01-31 12:00:00.123 info  [attention 0] message": the logger's own tag starts at 30.
  constexpr std::size_t kLoggerHeadBytes = 64;
  std::string prefixed;
  if (line.substr(0, kLoggerHeadBytes).find(prefix_) == std::string_view::npos) {
    prefixed = prefix_;
  }
  prefixed.append(line);
  sink_(prefixed);
  tail_.push_back(std::move(prefixed));
  if (tail_.size() > kTailLines) {
    tail_.pop_front();
  }
}

}  // namespace fastfd::launcher
