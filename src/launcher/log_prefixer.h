#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <string>
#include <string_view>

namespace fastfd::launcher {

/// Turns the output of a child, which arrives in arbitrary pieces, into whole lines that name the
/// child. Lines that already carry "[name]" in their head (our own loggers write it) stay as they
/// are. Not thread-safe.
class LogPrefixer {
 public:
  using Sink = std::function<void(std::string_view line)>;

  LogPrefixer(const std::string& name, Sink sink)
      : prefix_("[" + name + "] "), sink_(std::move(sink)) {}

  void feed(std::string_view bytes);

  /// Emits a last line that has no newline.
  void flush();

  /// The latest lines, oldest first, joined with newlines: what a child said before it died.
  std::string tail() const;

 private:
  static constexpr std::size_t kMaxLineBytes = 64 << 10;
  static constexpr std::size_t kTailLines = 5;

  void emit(std::string_view line);

  std::string prefix_;
  Sink sink_;
  std::string partial_;
  std::deque<std::string> tail_;
};

}  // namespace fastfd::launcher
