#pragma once

#include <cstddef>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

namespace fastfd::text {

/// Typed access to a JSON object of tokenizer.json. A TextError names the key from the top of the
/// file: "pre_tokenizer.pretokenizers[0].type is 5, not a string". null counts as absent.
class JsonFields {
 public:
  /// `value` must outlive the reader. Throws TextError if it is no object.
  JsonFields(const nlohmann::json& value, std::string path);

  const std::string& string(const char* key) const;
  std::string string_or(const char* key, std::string_view fallback) const;
  bool boolean(const char* key) const;
  bool boolean_or(const char* key, bool fallback) const;
  /// A whole number of at least 0.
  std::uint64_t count(const char* key) const;
  /// A string of exactly one character.
  char32_t character(const char* key) const;

  /// An array or object that must be there.
  const nlohmann::json& array(const char* key) const;
  const nlohmann::json& object(const char* key) const;
  /// Element `index` of an array member, which must be an object.
  JsonFields element(const char* key, std::size_t index) const;
  JsonFields child(const char* key) const;

  /// nullptr when absent.
  const nlohmann::json* find(const char* key) const;

  const std::string& path() const { return path_; }
  std::string full_key(const char* key) const;
  [[noreturn]] void fail(const char* key, std::string_view expected) const;

 private:
  const nlohmann::json* json_;
  std::string path_;
};

/// A JSON value for an error message, cut when long.
std::string shown_json(const nlohmann::json& value);

}  // namespace fastfd::text
