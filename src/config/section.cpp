#include "config/section.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <charconv>

namespace fastfd::config {
namespace {

std::string describe(const YAML::Node& node) {
  switch (node.Type()) {
    case YAML::NodeType::Map:
      return "a map";
    case YAML::NodeType::Sequence:
      return "a list";
    case YAML::NodeType::Scalar: {
      constexpr std::size_t kMostShown = 60;
      const std::string& text = node.Scalar();
      return "'" + (text.size() > kMostShown ? text.substr(0, kMostShown) + "..." : text) + "'";
    }
    case YAML::NodeType::Null:
    case YAML::NodeType::Undefined:
      break;
  }
  return "nothing";
}

/// yaml-cpp tags quoted scalars "!" and plain ones "?".
bool is_quoted(const YAML::Node& node) { return node.Tag() == "!"; }

bool matches(std::string_view pattern, std::string_view name) {
  if (pattern.ends_with('*')) {
    return name.starts_with(pattern.substr(0, pattern.size() - 1));
  }
  return pattern == name;
}

std::optional<HostPort> split_host_port(const std::string& text) {
  const std::size_t colon = text.rfind(':');
  if (colon == std::string::npos || colon == 0) {
    return std::nullopt;
  }
  HostPort result;
  result.host = text.substr(0, colon);
  if (result.host.front() == '[' && result.host.back() == ']') {
    result.host = result.host.substr(1, result.host.size() - 2);
  } else if (result.host.find(':') != std::string::npos) {
    return std::nullopt;  // IPv6 needs brackets: where its port begins is anyone's guess
  }
  const char* end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data() + colon + 1, end, result.port);
  const bool is_name = std::all_of(result.host.begin(), result.host.end(), [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '.' || c == '-' || c == '_' ||
           c == ':' || c == '%';  // "fe80::1%eth0"
  });
  if (error != std::errc{} || rest != end || result.host.empty() || !is_name) {
    return std::nullopt;
  }
  return result;
}

/// The digits from `at` on, which then stands behind them; nothing if there are none.
std::optional<std::uint32_t> take_gpu_index(const std::string& text, std::size_t& at) {
  constexpr std::uint32_t kMostGpus = 64;
  std::uint32_t value = 0;
  const char* begin = text.data() + at;
  const auto [rest, error] = std::from_chars(begin, text.data() + text.size(), value);
  if (error != std::errc{} || value >= kMostGpus) {
    return std::nullopt;
  }
  at += static_cast<std::size_t>(rest - begin);
  return value;
}

std::optional<DeviceChoice> parse_device(const std::string& text) {
  constexpr std::string_view kPrefix = "cuda:";
  if (text == "cpu") {
    return DeviceChoice{};
  }
  if (!text.starts_with(kPrefix)) {
    return std::nullopt;
  }
  std::size_t at = kPrefix.size();
  const auto first = take_gpu_index(text, at);
  auto last = first;
  if (first && at < text.size() && text[at] == '-') {
    last = take_gpu_index(text, ++at);
  }
  if (!first || !last || *last < *first || at != text.size()) {
    return std::nullopt;
  }
  return DeviceChoice{.is_cuda = true, .first_gpu = *first, .num_gpus = *last - *first + 1};
}

}  // namespace

Section::Section(const YAML::Node& node, std::string path, Problems* problems)
    : path_(std::move(path)), problems_(problems) {
  if (!node.IsDefined()) {
    return;
  }
  if (!node.IsMap()) {
    problems_->add(path_,
                   fmt::format("expected a map of keys, got {}; write it as `{}: {{key: value}}`",
                               describe(node), path_.empty() ? "section" : path_));
    return;
  }
  for (const auto& item : node) {
    const int line = item.first.Mark().line + 1;
    if (!item.first.IsScalar()) {
      problems_->add_at(line, path_, "a key must be plain text; remove the brackets around it");
      continue;
    }
    const std::string key = item.first.Scalar();
    if (const Entry* first = find(key)) {
      problems_->add_at(
          line, full_key(key),
          fmt::format("given twice, first on line {}; keep one of the two", first->line));
      continue;
    }
    problems_->note_line(full_key(key), line);
    entries_.emplace(key, Entry{line, item.second});
  }
}

const Section::Entry* Section::find(const std::string& key) const {
  const auto at = entries_.find(key);
  return at == entries_.end() ? nullptr : &at->second;
}

Section Section::child(const std::string& key) {
  known_keys_.push_back(key);
  const Entry* entry = find(key);
  return {entry == nullptr ? YAML::Node(YAML::NodeType::Undefined) : entry->value, full_key(key),
          problems_};
}

std::optional<std::string> Section::scalar(const std::string& key, const std::string& expected) {
  known_keys_.push_back(key);
  const Entry* entry = find(key);
  if (entry == nullptr) {
    return std::nullopt;
  }
  if (!entry->value.IsScalar()) {
    add(key, fmt::format("expected {}, got {}; give one value or remove the key", expected,
                         describe(entry->value)));
    return std::nullopt;
  }
  return entry->value.Scalar();
}

std::optional<std::uint32_t> Section::integer(const std::string& key, Range range, bool allow_auto,
                                              bool& is_auto) {
  is_auto = false;
  const std::string expected = fmt::format("{}an integer from {} to {}",
                                           allow_auto ? "`auto` or " : "", range.min, range.max);
  const auto text = scalar(key, expected);
  if (!text) {
    return std::nullopt;
  }
  if (allow_auto && *text == "auto") {
    is_auto = true;
    return std::nullopt;
  }
  const YAML::Node& node = find(key)->value;
  std::uint64_t value = 0;
  const char* end = text->data() + text->size();
  const auto [rest, error] = std::from_chars(text->data(), end, value);
  const bool is_number = error == std::errc{} && rest == end;
  if (is_number && is_quoted(node)) {
    add(key, fmt::format("expected {}, got the text \"{}\"; remove the quotes", expected, *text));
  } else if (!is_number) {
    add(key, fmt::format("expected {}, got {}; write a whole number in that range", expected,
                         describe(node)));
  } else if (value < range.min || value > range.max) {
    add(key, fmt::format("{} is out of range; use {}", value, expected));
  } else {
    return static_cast<std::uint32_t>(value);
  }
  return std::nullopt;
}

void Section::read(const std::string& key, std::uint32_t& out, Range range) {
  bool is_auto = false;
  if (const auto value = integer(key, range, false, is_auto)) {
    out = *value;
  }
}

void Section::read_or_auto(const std::string& key, std::optional<std::uint32_t>& out, Range range) {
  bool is_auto = false;
  const auto value = integer(key, range, true, is_auto);
  if (value || is_auto) {
    out = value;
  }
}

void Section::read_or_auto(const std::string& key, std::optional<double>& out, Fraction range) {
  const std::string expected = fmt::format("`auto` or a number above 0 and up to {}", range.max);
  const auto text = scalar(key, expected);
  if (!text) {
    return;
  }
  if (*text == "auto") {
    out.reset();
    return;
  }
  double value = 0.0;
  const char* end = text->data() + text->size();
  const auto [rest, error] = std::from_chars(text->data(), end, value);
  const YAML::Node& node = find(key)->value;
  if (error != std::errc{} || rest != end || is_quoted(node)) {
    add(key, fmt::format("expected {}, got {}; write it as 0.5", expected, describe(node)));
  } else if (!(value > 0.0) || value > range.max) {  // not a number fails, too
    add(key, fmt::format("{} is out of range; use {}", *text, expected));
  } else {
    out = value;
  }
}

void Section::read(const std::string& key, bool& out) {
  const auto text = scalar(key, "true or false");
  if (!text) {
    return;
  }
  if (*text == "true" || *text == "false") {
    out = *text == "true";
  } else {
    add(key, fmt::format("expected true or false, got {}; write one of the two",
                         describe(find(key)->value)));
  }
}

void Section::read(const std::string& key, std::string& out) {
  const auto text = scalar(key, "text");
  if (!text) {
    return;
  }
  if (text->empty()) {
    add(key, "is empty; give a value or remove the key");
  } else {
    out = *text;
  }
}

void Section::read(const std::string& key, HostPort& out) {
  const auto text = scalar(key, "an address \"host:port\"");
  if (!text) {
    return;
  }
  if (const auto value = split_host_port(*text)) {
    out = *value;
  } else {
    add(key, fmt::format("{} is no address; write \"host:port\" with a port from 0 to 65535, as in "
                         "\"127.0.0.1:8000\" or \"[::1]:8000\"",
                         describe(find(key)->value)));
  }
}

void Section::read(const std::string& key, DeviceChoice& out) {
  const auto text = scalar(key, "a device");
  if (!text) {
    return;
  }
  if (const auto value = parse_device(*text)) {
    out = *value;
    return;
  }
  const bool is_gpu = text->starts_with("cuda") || text->starts_with("gpu");
  add(key, fmt::format("{} is {}; use cpu, a GPU as in cuda:0, or a range of GPUs as in cuda:0-3",
                       describe(find(key)->value),
                       text->starts_with("rocm") ? "not supported"
                       : is_gpu                  ? "no GPU's name"
                                                 : "not known"));
}

std::optional<std::size_t> Section::read_choice_index(const std::string& key,
                                                      const std::vector<std::string>& names,
                                                      const std::vector<RefusedName>& refused) {
  const auto text = scalar(key, fmt::format("one of {}", fmt::join(names, ", ")));
  if (!text) {
    return std::nullopt;
  }
  if (const auto at = std::find(names.begin(), names.end(), *text); at != names.end()) {
    return static_cast<std::size_t>(at - names.begin());
  }
  const std::string use =
      names.size() == 1 ? "use " + names[0] : fmt::format("use one of {}", fmt::join(names, ", "));
  for (const auto& name : refused) {
    if (matches(name.name, *text)) {
      add(key, fmt::format("{} {}; {}", describe(find(key)->value), name.reason, use));
      return std::nullopt;
    }
  }
  add(key, fmt::format("{} is not known; {}", describe(find(key)->value), use));
  return std::nullopt;
}

void Section::finish() {
  for (const auto& [key, entry] : entries_) {
    if (std::find(known_keys_.begin(), known_keys_.end(), key) != known_keys_.end()) {
      continue;
    }
    const std::string guess = closest_match(key, known_keys_);
    const std::string remedy =
        guess.empty() ? fmt::format("the keys here are {}", fmt::join(known_keys_, ", "))
                      : fmt::format("did you mean '{}'?", guess);
    problems_->add_at(entry.line, full_key(key), "unknown key; " + remedy);
  }
}

}  // namespace fastfd::config
