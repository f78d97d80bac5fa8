#pragma once

/// Typed reading of one map of the cluster file.

#include <yaml-cpp/yaml.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "config/problems.h"
#include "fastfd/config/cluster_config.h"

namespace fastfd::config {

/// The legal values of an integer key.
struct Range {
  std::uint32_t min = 0;
  std::uint32_t max = UINT32_MAX;
};

/// The legal values of a fraction: (0, max].
struct Fraction {
  double max = 1.0;
};

/// A name that users may expect here, and why it can't be had.
struct RefusedName {
  std::string_view name;  ///< a trailing '*' stands for any ending
  std::string_view reason;
};

/// One map. Every reader leaves `out` alone when the key is absent, and reports a problem when its
/// value is no good. Keys that no reader asked for are reported by finish().
class Section {
 public:
  /// `path` is "" for the whole file. A node that is not a map is a problem and reads as empty.
  Section(const YAML::Node& node, std::string path, Problems* problems);

  Section child(const std::string& key);

  void read(const std::string& key, std::uint32_t& out, Range range);
  /// `auto` gives nullopt.
  void read_or_auto(const std::string& key, std::optional<std::uint32_t>& out, Range range);
  void read(const std::string& key, bool& out);
  void read(const std::string& key, std::string& out);
  void read(const std::string& key, HostPort& out);
  void read(const std::string& key, DeviceChoice& out);
  /// `auto` gives nullopt.
  void read_or_auto(const std::string& key, std::optional<double>& out, Fraction range);

  template <typename T>
  void read_choice(const std::string& key, T& out,
                   const std::vector<std::pair<std::string_view, T>>& choices,
                   const std::vector<RefusedName>& refused = {}) {
    std::vector<std::string> names;
    names.reserve(choices.size());
    for (const auto& choice : choices) {
      names.emplace_back(choice.first);
    }
    if (const auto index = read_choice_index(key, names, refused)) {
      out = choices[*index].second;
    }
  }

  /// Reports the keys that nobody read, each with what it may have been meant to be.
  void finish();

  std::string full_key(const std::string& key) const {
    return path_.empty() ? key : path_ + "." + key;
  }

 private:
  struct Entry {
    int line = 1;
    YAML::Node value;
  };

  const Entry* find(const std::string& key) const;
  /// The text of a scalar, or nullopt (absent, or a problem was added). `expected` names the type.
  std::optional<std::string> scalar(const std::string& key, const std::string& expected);
  std::optional<std::uint32_t> integer(const std::string& key, Range range, bool allow_auto,
                                       bool& is_auto);
  std::optional<std::size_t> read_choice_index(const std::string& key,
                                               const std::vector<std::string>& names,
                                               const std::vector<RefusedName>& refused);
  void add(const std::string& key, const std::string& what) { problems_->add(full_key(key), what); }

  std::string path_;
  Problems* problems_;
  std::map<std::string, Entry> entries_;
  std::vector<std::string> known_keys_;
};

}  // namespace fastfd::config
