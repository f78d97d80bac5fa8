#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "text/jinja/builtins.h"
#include "text/jinja/failure.h"
#include "text/utf8.h"

namespace fastfd::jinja {
namespace {

/// json.dumps of Python, whose defaults differ from other writers in the spaces.
class JsonWriter {
 public:
  explicit JsonWriter(const JsonStyle& style) : style_(style) {}

  std::string run(const Value& value) {
    write(value, 0);
    return std::move(out_);
  }

 private:
  void write(const Value& value, std::size_t level) {
    if (const std::string* text = value.string()) {
      write_string(*text);
    } else if (const List* list = value.list();
               list != nullptr &&
               (list->kind == List::Kind::kList || list->kind == List::Kind::kTuple)) {
      write_list(*list, level);
    } else if (const Dict* dict = value.dict()) {
      write_dict(*dict, level);
    } else {
      out_ += scalar(value);
    }
  }

  static std::string scalar(const Value& value) {
    if (value.is_none()) {
      return "null";
    }
    if (const auto* b = value.get_if<bool>()) {
      return *b ? "true" : "false";
    }
    if (const auto* i = value.get_if<std::int64_t>()) {
      return fmt::format("{}", *i);
    }
    if (const auto* d = value.get_if<double>()) {
      if (std::isnan(*d)) {
        return "NaN";
      }
      return std::isinf(*d) ? (*d < 0 ? "-Infinity" : "Infinity") : float_repr(*d);
    }
    fail(fmt::format("Object of type {} is not JSON serializable", type_name(value)));
  }

  void new_line(std::size_t level) {
    if (style_.indent) {
      out_ += '\n';
      for (std::size_t i = 0; i < level; ++i) {
        out_ += *style_.indent;
      }
    }
  }

  void write_list(const List& list, std::size_t level) {
    if (list.items.empty()) {
      out_ += "[]";
      return;
    }
    out_ += '[';
    for (std::size_t i = 0; i < list.items.size(); ++i) {
      out_ += i == 0 ? "" : style_.item_separator;
      new_line(level + 1);
      write(list.items[i], level + 1);
    }
    new_line(level);
    out_ += ']';
  }

  void write_dict(const Dict& dict, std::size_t level) {
    if (dict.items.empty()) {
      out_ += "{}";
      return;
    }
    std::vector<const std::pair<Value, Value>*> items;
    for (const auto& item : dict.items) {
      items.push_back(&item);
    }
    if (style_.sort_keys) {
      std::stable_sort(items.begin(), items.end(), [](const auto* a, const auto* b) {
        return compare(a->first, b->first, "<") < 0;
      });
    }
    out_ += '{';
    for (std::size_t i = 0; i < items.size(); ++i) {
      out_ += i == 0 ? "" : style_.item_separator;
      new_line(level + 1);
      const Value& key = items[i]->first;
      write_string(key.is_string() ? *key.string() : scalar(key));
      out_ += style_.key_separator;
      write(items[i]->second, level + 1);
    }
    new_line(level);
    out_ += '}';
  }

  void write_string(const std::string& text) {
    out_ += '"';
    for (std::size_t pos = 0; pos < text.size();) {
      const std::size_t begin = pos;
      const auto c = static_cast<std::uint32_t>(text::next_code_point(text, pos));
      static constexpr std::string_view kShort = "\"\\\n\r\t\b\f";
      static constexpr std::string_view kNames = "\"\\nrtbf";
      const std::size_t i = c < 0x80 ? kShort.find(static_cast<char>(c)) : std::string_view::npos;
      if (i != std::string_view::npos) {
        out_ += '\\';
        out_ += kNames[i];
      } else if (c < 0x20 || (style_.ensure_ascii && c > 0x7F && c < 0x10000)) {
        out_ += fmt::format("\\u{:04x}", c);
      } else if (style_.ensure_ascii && c >= 0x10000) {
        out_ += fmt::format("\\u{:04x}\\u{:04x}", 0xD7C0U + (c >> 10), 0xDC00U + (c & 0x3FFU));
      } else {
        out_.append(text, begin, pos - begin);
      }
    }
    out_ += '"';
  }

  const JsonStyle& style_;
  std::string out_;
};

}  // namespace

std::string to_json(const Value& value, const JsonStyle& style) {
  return JsonWriter(style).run(value);
}

}  // namespace fastfd::jinja
