#pragma once

/// Strict reading of the JSON files beside a checkpoint.

#include <cstdint>
#include <filesystem>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "fastfd/model/model.h"

namespace fastfd::model {

/// A JSON object from a file. Errors are ModelErrors "file: key: what is wrong; remedy". A key that
/// is null counts as absent, as it does in transformers.
class HfConfig {
 public:
  /// Throws ModelError if the file is missing, too large, or no JSON object.
  static HfConfig read_file(const std::filesystem::path& file);

  HfConfig(HfConfig&&) noexcept;
  ~HfConfig();

  const nlohmann::json& json() const { return *json_; }
  const std::string& text() const { return text_; }  ///< the file's bytes

  bool has(const std::string& key) const { return find(key) != nullptr; }
  /// nullptr if absent or null.
  const nlohmann::json* find(const std::string& key) const;

  /// The object under a key; its errors name "key.inner key". nullopt if absent or null.
  std::optional<HfConfig> section(const std::string& key) const;

  /// An integer of [min, max] that must be there.
  std::uint32_t count(const std::string& key, std::uint32_t min, std::uint32_t max) const;
  std::uint32_t count_or(const std::string& key, std::uint32_t fallback, std::uint32_t min,
                         std::uint32_t max) const;
  /// The first of several spellings that is there; the first is named if none is.
  std::uint32_t count_of_any(const std::vector<std::string>& keys, std::uint32_t min,
                             std::uint32_t max) const;
  /// A finite number of [min, max], which must be there.
  double number(const std::string& key, double min, double max) const;
  /// The same, or the fallback.
  double number_or(const std::string& key, double fallback, double min, double max) const;
  bool flag_or(const std::string& key, bool fallback) const;
  std::string text_or(const std::string& key, const std::string& fallback) const;

  [[noreturn]] void fail(const std::string& key, const std::string& what,
                         const std::string& remedy) const;

 private:
  HfConfig(std::filesystem::path file, std::string text);
  HfConfig(std::filesystem::path file, std::string prefix, nlohmann::json json);

  std::filesystem::path file_;
  std::string prefix_;  // of keys in messages: "" or "section."
  std::string text_;
  std::unique_ptr<nlohmann::json> json_;
};

/// The part of a ModelSpec that does not depend on the architecture: end-of-sequence ids and
/// sampling defaults. generation_config.json may be missing.
void read_generation_config(const std::filesystem::path& model_dir, const HfConfig& config,
                            ModelSpec& spec);

}  // namespace fastfd::model
