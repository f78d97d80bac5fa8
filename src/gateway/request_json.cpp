#include "gateway/request_json.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <nlohmann/json.hpp>
#include <numeric>
#include <utility>
#include <vector>

#include "gateway/api_error.h"
#include "gateway/json_text.h"

namespace fastfd::gateway {
namespace {

constexpr int kMaxNesting = 64;
constexpr std::size_t kMaxShownBytes = 80;

/// Looks for nesting beyond the limit without building anything.
bool nests_too_deep(std::string_view body) {
  int depth = 0;
  bool in_string = false;
  for (std::size_t i = 0; i < body.size(); ++i) {
    const char c = body[i];
    if (in_string) {
      if (c == '\\') {
        ++i;
      } else if (c == '"') {
        in_string = false;
      }
    } else if (c == '"') {
      in_string = true;
    } else if (c == '[' || c == '{') {
      if (++depth > kMaxNesting) {
        return true;
      }
    } else if (c == ']' || c == '}') {
      --depth;
    }
  }
  return false;
}

/// "line 3, column 14 (byte 60)" of a 1-based byte position.
std::string position_text(std::string_view body, std::size_t byte) {
  std::size_t line = 1;
  std::size_t line_start = 0;
  const std::size_t end = byte == 0 ? 0 : std::min(byte - 1, body.size());
  for (std::size_t i = 0; i < end; ++i) {
    if (body[i] == '\n') {
      ++line;
      line_start = i + 1;
    }
  }
  return fmt::format("line {}, column {} (byte {})", line, end - line_start + 1, byte);
}

/// What the JSON library found, without its own name, number and position.
std::string parser_words(const nlohmann::json::exception& error) {
  const std::string_view what = error.what();
  const auto at = what.find("syntax error");
  std::string words(at == std::string_view::npos ? what.substr(what.find("] ") + 2)
                                                 : what.substr(at));
  if (!is_utf8(words)) {  // it quotes the last bytes it read
    words = "it contains bytes that are not UTF-8";
  }
  return words;
}

/// Builds the value by appending: inserting by key is linear in an ordered object's size, so that
/// an object of a million keys would hold a thread for hours.
class OrderedBuilder final : public nlohmann::json_sax<RequestJson> {
 public:
  explicit OrderedBuilder(std::string_view body) : body_(body) {}

  RequestJson take() { return std::move(root_); }

  bool null() override { return add(nullptr); }
  bool boolean(bool value) override { return add(value); }
  bool number_integer(number_integer_t value) override { return add(value); }
  bool number_unsigned(number_unsigned_t value) override { return add(value); }
  bool number_float(number_float_t value, const string_t& /*text*/) override { return add(value); }
  bool string(string_t& value) override { return add(std::move(value)); }
  bool binary(binary_t& /*value*/) override { return false; }  // JSON text has none
  bool start_object(std::size_t /*size*/) override { return open(RequestJson::object()); }
  bool start_array(std::size_t /*size*/) override { return open(RequestJson::array()); }
  bool end_array() override { return close(); }

  bool key(string_t& key) override {
    key_ = std::move(key);
    return true;
  }

  bool end_object() override {
    drop_duplicates(open_.back()->get_ref<RequestJson::object_t&>());
    return close();
  }

  bool parse_error(std::size_t position, const std::string& /*last_token*/,
                   const nlohmann::json::exception& error) override {
    constexpr int kFirstOutOfRange = 400;
    const std::string place =
        error.id < kFirstOutOfRange ? " at " + position_text(body_, position) : std::string();
    reject("", fmt::format("The request body is not valid JSON{}: {}.", place, parser_words(error)),
           "invalid_json");
  }

 private:
  bool add(RequestJson value) {
    place(std::move(value));
    return true;
  }

  RequestJson* place(RequestJson value) {
    if (open_.empty()) {
      root_ = std::move(value);
      return &root_;
    }
    RequestJson& parent = *open_.back();
    if (parent.is_array()) {
      auto& elements = parent.get_ref<RequestJson::array_t&>();
      elements.push_back(std::move(value));
      return &elements.back();
    }
    auto& members = parent.get_ref<RequestJson::object_t&>();
    members.emplace_back(std::move(key_), std::move(value));
    return &members.back().second;
  }

  // What is open is the last of its parent, which grows only after it was closed.
  bool open(RequestJson empty) {
    open_.push_back(place(std::move(empty)));
    return true;
  }

  bool close() {
    open_.pop_back();
    return true;
  }

  static void drop_duplicates(RequestJson::object_t& members) {
    if (members.size() < 2) {
      return;
    }
    auto* const all = members.data();  // members[i] would look for a key
    std::vector<std::size_t> order(members.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::stable_sort(order.begin(), order.end(),
                     [all](std::size_t a, std::size_t b) { return all[a].first < all[b].first; });
    std::vector<bool> dropped(members.size(), false);
    bool any = false;
    for (std::size_t i = 1, first = 0; i < order.size(); ++i) {
      if (all[order[i]].first != all[order[first]].first) {
        first = i;
        continue;
      }
      all[order[first]].second = std::move(all[order[i]].second);
      dropped[order[i]] = true;
      any = true;
    }
    if (!any) {
      return;
    }
    RequestJson::object_t kept;
    for (std::size_t i = 0; i < members.size(); ++i) {
      if (!dropped[i]) {
        kept.emplace_back(all[i].first, std::move(all[i].second));
      }
    }
    members = std::move(kept);
  }

  std::string_view body_;
  RequestJson root_;
  std::vector<RequestJson*> open_;
  std::string key_;
};

}  // namespace

RequestJson parse_json_object(std::string_view body) {
  if (nests_too_deep(body)) {
    reject("", fmt::format("The request body nests deeper than {} levels.", kMaxNesting),
           "invalid_json");
  }
  OrderedBuilder builder(body);
  RequestJson::sax_parse(body, &builder);
  RequestJson object = builder.take();
  if (!object.is_object()) {
    reject("", fmt::format("The request body must be a JSON object, not {}.", object.type_name()),
           "invalid_json");
  }
  return object;
}

std::string show_value(const RequestJson& value) {
  // Large arrays are not rendered just to be cut.
  if (value.is_structured() && value.size() > kMaxShownBytes) {
    return fmt::format("an {} of {} elements", value.type_name(), value.size());
  }
  std::string text = value.dump(-1, ' ', false, RequestJson::error_handler_t::replace);
  if (text.size() > kMaxShownBytes) {
    std::size_t cut = kMaxShownBytes;
    while (cut > 0 && (static_cast<unsigned char>(text[cut]) & 0xC0U) == 0x80U) {
      --cut;
    }
    text.resize(cut);
    text += "...";
  }
  return text;
}

}  // namespace fastfd::gateway
