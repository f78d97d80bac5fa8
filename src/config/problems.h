#pragma once

/// Everything that is wrong with a cluster file, gathered before anything is thrown.

#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace fastfd::config {

/// Collects problems and remembers where each key stands. Not thread-safe.
class Problems {
 public:
  explicit Problems(std::string source_name) : source_name_(std::move(source_name)) {}

  /// Notes that `key` ("attention.kv_cache.pages") stands on `line`, counted from 1.
  void note_line(const std::string& key, int line) { lines_[key] = line; }

  /// Line of the key, else of the nearest section above it, else 1.
  int line_of(std::string_view key) const;

  /// `what` reads "what is wrong; remedy".
  void add(const std::string& key, const std::string& what) { add_at(line_of(key), key, what); }
  void add_at(int line, const std::string& key, const std::string& what);

  /// A key with a problem of its own is left out of checks that combine keys: no follow-up errors.
  bool has(const std::string& key) const { return bad_keys_.contains(key); }

  /// Throws ConfigError with one line a problem, by ascending line, if there is any.
  void raise_if_any() const;

 private:
  struct Problem {
    int line;
    std::string text;
  };
  std::string source_name_;
  std::map<std::string, int, std::less<>> lines_;
  std::set<std::string> bad_keys_;
  std::vector<Problem> problems_;
};

/// The candidate that `word` is most likely a misspelling of, or an empty string.
std::string closest_match(std::string_view word, const std::vector<std::string>& candidates);

}  // namespace fastfd::config
