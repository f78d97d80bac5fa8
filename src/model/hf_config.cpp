#include "model/hf_config.h"

#include <fmt/format.h>

#include <cmath>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>
#include <system_error>

#include "fastfd/core/model_files.h"

namespace fastfd::model {
namespace {

/// Room for the index of a checkpoint of several hundred thousand tensors.
constexpr std::uintmax_t kMostFileBytes = std::uintmax_t{64} << 20;
constexpr int kDeepestJson = 64;

std::string read_text(const std::filesystem::path& file) {
  std::error_code error;
  // Looked at before it is opened: opening a FIFO waits for a writer, perhaps for ever.
  const bool is_file = std::filesystem::is_regular_file(file, error);
  const auto num_bytes = is_file ? std::filesystem::file_size(file, error) : 0;
  std::ifstream stream;
  if (is_file) {
    stream.open(file, std::ios::binary);
  }
  if (!is_file || error || !stream) {
    throw ModelError(file.string() +
                     ": can't be read; give a complete Hugging Face model folder whose files may "
                     "be read");
  }
  if (num_bytes > kMostFileBytes) {
    throw ModelError(
        fmt::format("{}: {} bytes are too many; check that it is the file it should "
                    "be",
                    file.string(), num_bytes));
  }
  std::string text{std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>()};
  if (is_git_lfs_pointer(text)) {
    throw ModelError(fmt::format("{} {}", file.string(), kGitLfsRemedy));
  }
  return text;
}

std::string show(const nlohmann::json& value) {
  constexpr std::size_t kMostShown = 80;
  const std::string text = value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  return text.size() > kMostShown ? text.substr(0, kMostShown) + "..." : text;
}

}  // namespace

HfConfig::HfConfig(std::filesystem::path file, std::string text)
    : file_(std::move(file)), text_(std::move(text)), json_(std::make_unique<nlohmann::json>()) {
  const auto check_depth = [&](int depth, nlohmann::json::parse_event_t, nlohmann::json&) {
    if (depth > kDeepestJson) {
      throw ModelError(file_.string() + ": nested too deeply; fetch the file again");
    }
    return true;
  };
  try {
    *json_ = nlohmann::json::parse(text_, check_depth);
  } catch (const nlohmann::json::exception& error) {
    throw ModelError(
        fmt::format("{}: not valid JSON ({}); fetch the file again", file_.string(), error.what()));
  }
  if (!json_->is_object()) {
    throw ModelError(file_.string() + ": not a JSON object; fetch the file again");
  }
}

HfConfig::HfConfig(std::filesystem::path file, std::string prefix, nlohmann::json json)
    : file_(std::move(file)),
      prefix_(std::move(prefix)),
      json_(std::make_unique<nlohmann::json>(std::move(json))) {}

HfConfig::HfConfig(HfConfig&&) noexcept = default;
HfConfig::~HfConfig() = default;

HfConfig HfConfig::read_file(const std::filesystem::path& file) { return {file, read_text(file)}; }

const nlohmann::json* HfConfig::find(const std::string& key) const {
  const auto at = json_->find(key);
  return at == json_->end() || at->is_null() ? nullptr : &*at;
}

std::optional<HfConfig> HfConfig::section(const std::string& key) const {
  const nlohmann::json* value = find(key);
  if (value == nullptr) {
    return std::nullopt;
  }
  if (!value->is_object()) {
    fail(key, "is not an object", "use the config.json that belongs to the checkpoint");
  }
  return HfConfig(file_, prefix_ + key + ".", *value);
}

std::uint32_t HfConfig::count_of_any(const std::vector<std::string>& keys, std::uint32_t min,
                                     std::uint32_t max) const {
  for (const auto& key : keys) {
    if (has(key)) {
      return count(key, min, max);
    }
  }
  return count(keys.front(), min, max);
}

double HfConfig::number(const std::string& key, double min, double max) const {
  if (!has(key)) {
    fail(key, "is missing", "use the config.json that belongs to the checkpoint");
  }
  return number_or(key, 0.0, min, max);
}

std::uint32_t HfConfig::count(const std::string& key, std::uint32_t min, std::uint32_t max) const {
  if (!has(key)) {
    fail(key, "is missing", "use the config.json that belongs to the checkpoint");
  }
  return count_or(key, 0, min, max);
}

std::uint32_t HfConfig::count_or(const std::string& key, std::uint32_t fallback, std::uint32_t min,
                                 std::uint32_t max) const {
  const nlohmann::json* value = find(key);
  if (value == nullptr) {
    return fallback;
  }
  if (!value->is_number_unsigned() || value->get<std::uint64_t>() < min ||
      value->get<std::uint64_t>() > max) {
    fail(key, fmt::format("is {}, not an integer from {} to {}", show(*value), min, max),
         "use the config.json that belongs to the checkpoint");
  }
  return value->get<std::uint32_t>();
}

double HfConfig::number_or(const std::string& key, double fallback, double min, double max) const {
  const nlohmann::json* value = find(key);
  if (value == nullptr) {
    return fallback;
  }
  const double number = value->is_number() ? value->get<double>() : std::nan("");
  if (!(number >= min && number <= max)) {
    fail(key, fmt::format("is {}, not a number from {} to {}", show(*value), min, max),
         "correct it or remove the key");
  }
  return number;
}

bool HfConfig::flag_or(const std::string& key, bool fallback) const {
  const nlohmann::json* value = find(key);
  if (value == nullptr) {
    return fallback;
  }
  if (!value->is_boolean()) {
    fail(key, fmt::format("is {}, not true or false", show(*value)),
         "correct it or remove the key");
  }
  return value->get<bool>();
}

std::string HfConfig::text_or(const std::string& key, const std::string& fallback) const {
  const nlohmann::json* value = find(key);
  if (value == nullptr) {
    return fallback;
  }
  if (!value->is_string()) {
    fail(key, fmt::format("is {}, not a text", show(*value)), "correct it or remove the key");
  }
  return value->get<std::string>();
}

void HfConfig::fail(const std::string& key, const std::string& what,
                    const std::string& remedy) const {
  throw ModelError(fmt::format("{}: {}{}: {}; {}", file_.string(), prefix_, key, what, remedy));
}

namespace {

/// `eos_token_id`: an id or a list of them; nullopt if the key is absent.
std::optional<std::vector<TokenId>> read_eos_ids(const HfConfig& config, std::uint32_t vocab_size) {
  const std::string key = "eos_token_id";
  const nlohmann::json* value = config.find(key);
  if (value == nullptr) {
    return std::nullopt;
  }
  const nlohmann::json list = value->is_array() ? *value : nlohmann::json::array({*value});
  std::vector<TokenId> ids;
  for (const auto& id : list) {
    if (!id.is_number_unsigned() || id.get<std::uint64_t>() >= vocab_size) {
      config.fail(key, fmt::format("{} is no token id below vocab_size = {}", show(id), vocab_size),
                  "use the files that belong to the checkpoint");
    }
    ids.push_back(id.get<TokenId>());
  }
  return ids;
}

}  // namespace

void read_generation_config(const std::filesystem::path& model_dir, const HfConfig& config,
                            ModelSpec& spec) {
  if (const auto ids = read_eos_ids(config, spec.vocab_size)) {
    spec.eos_token_ids = *ids;
  } else if (const auto text = config.section("text_config")) {
    spec.eos_token_ids = read_eos_ids(*text, spec.vocab_size).value_or(spec.eos_token_ids);
  }
  const auto file = model_dir / "generation_config.json";
  if (!has_entry(file)) {
    return;
  }
  const HfConfig generation = HfConfig::read_file(file);
  if (const auto ids = read_eos_ids(generation, spec.vocab_size)) {
    spec.eos_token_ids = *ids;
  }
  spec.default_do_sample = generation.flag_or("do_sample", spec.default_do_sample);
  spec.default_temperature = static_cast<float>(
      generation.number_or("temperature", spec.default_temperature, 0.0, 1000.0));
  spec.default_top_p =
      static_cast<float>(generation.number_or("top_p", spec.default_top_p, 1e-6, 1.0));
  spec.default_top_k = static_cast<std::int32_t>(
      generation.count_or("top_k", static_cast<std::uint32_t>(spec.default_top_k), 0, INT32_MAX));
  spec.default_min_p =
      static_cast<float>(generation.number_or("min_p", spec.default_min_p, 0.0, 1.0));
  spec.default_repetition_penalty = static_cast<float>(
      generation.number_or("repetition_penalty", spec.default_repetition_penalty, 0.01, 100.0));
}

}  // namespace fastfd::model
