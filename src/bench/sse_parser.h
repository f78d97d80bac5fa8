#pragma once

#include <string>
#include <string_view>
#include <utility>

namespace fastfd::bench {

/// Splits a server-sent event stream into the data of its events, wherever the bytes are cut.
/// Source: WHATWG HTML, "Interpreting an event stream"; event names, ids and retry are skipped.
class SseParser {
 public:
  /// Calls on_data(std::string_view) for each event that `bytes` completes.
  template <typename OnData>
  void feed(std::string_view bytes, OnData&& on_data) {
    for (const char c : bytes) {
      if (skip_line_feed_) {
        skip_line_feed_ = false;
        if (c == '\n') {
          continue;
        }
      }
      if (c != '\n' && c != '\r') {
        line_ += c;
        continue;
      }
      skip_line_feed_ = c == '\r';
      if (end_line()) {
        on_data(std::string_view(data_));
        data_.clear();
        has_data_ = false;
      }
    }
  }

  /// The stream ended: an event without its closing blank line counts, as servers end with
  /// "data: [DONE]" and nothing more.
  template <typename OnData>
  void finish(OnData&& on_data) {
    feed("\n\n", std::forward<OnData>(on_data));
  }

 private:
  /// True when the line ends an event that has data.
  bool end_line();

  std::string line_;
  std::string data_;
  bool has_data_ = false;
  bool skip_line_feed_ = false;
  bool first_line_ = true;
};

}  // namespace fastfd::bench
