#include "bench/workload.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <sstream>
#include <string_view>
#include <system_error>
#include <utility>

namespace fastfd::bench {
namespace {

/// Short common words: one token each in most vocabularies.
constexpr std::array<std::string_view, 64> kWords{
    "the",   "of",   "and",  "to",    "in",    "is",    "that", "it",    "was",  "for",  "on",
    "are",   "as",   "with", "his",   "they",  "at",    "be",   "this",  "have", "from", "or",
    "one",   "had",  "by",   "word",  "but",   "not",   "what", "all",   "were", "we",   "when",
    "your",  "can",  "said", "there", "use",   "an",    "each", "which", "she",  "do",   "how",
    "their", "if",   "will", "up",    "other", "about", "out",  "many",  "then", "them", "these",
    "so",    "some", "her",  "would", "make",  "like",  "him",  "into",  "time"};

/// Ids below are control tokens in many vocabularies.
constexpr std::uint32_t kFirstTokenId = 100;

std::mt19937_64 item_generator(std::uint64_t seed, std::uint64_t index) {
  std::seed_seq mixed{seed & 0xffffffffU, seed >> 32, index & 0xffffffffU, index >> 32};
  return std::mt19937_64(mixed);
}

// Own draws: those of <random> differ between standard libraries, and a seed should not.
std::uint64_t draw_below(std::mt19937_64& generator, std::uint64_t bound) {
  return generator() % bound;
}

std::uint32_t draw_length(std::mt19937_64& generator, std::uint32_t length, double range_ratio) {
  const auto low = std::max(1.0, std::floor(length * (1 - range_ratio)));
  const auto high = std::max(low, std::ceil(length * (1 + range_ratio)));
  const auto span = static_cast<std::uint64_t>(high - low) + 1;
  return static_cast<std::uint32_t>(low) + static_cast<std::uint32_t>(draw_below(generator, span));
}

std::string draw_words(std::mt19937_64& generator, std::uint32_t num_words) {
  std::string text;
  for (std::uint32_t i = 0; i < num_words; ++i) {
    if (i > 0) {
      text += ' ';
    }
    text += kWords[draw_below(generator, kWords.size())];
  }
  return text;
}

class SyntheticWorkload final : public Workload {
 public:
  SyntheticWorkload(const ServeBenchOptions& options, bool use_tokens, const WordCost& word_cost)
      : options_(options), use_tokens_(use_tokens), word_cost_(word_cost) {}

  WorkItem item(std::uint64_t index) const override {
    std::mt19937_64 generator = item_generator(options_.seed, index);
    WorkItem item;
    const std::uint32_t input_len =
        draw_length(generator, options_.input_len, options_.range_ratio);
    item.output_len = draw_length(generator, options_.output_len, options_.range_ratio);
    if (!use_tokens_) {
      const double words = (input_len - word_cost_.overhead) / word_cost_.per_word;
      item.text = draw_words(generator, static_cast<std::uint32_t>(std::max(1.0, words + 0.5)));
      return item;
    }
    item.tokens.reserve(input_len);
    for (std::uint32_t i = 0; i < input_len; ++i) {
      item.tokens.push_back(static_cast<std::int32_t>(
          kFirstTokenId + draw_below(generator, options_.vocab_size - kFirstTokenId)));
    }
    return item;
  }

 private:
  ServeBenchOptions options_;
  bool use_tokens_;
  WordCost word_cost_;
};

class DatasetWorkload final : public Workload {
 public:
  DatasetWorkload(std::vector<DatasetEntry> entries, std::uint64_t seed)
      : entries_(std::move(entries)) {
    std::mt19937_64 generator = item_generator(seed, 0);
    for (std::size_t i = entries_.size() - 1; i > 0; --i) {
      std::swap(entries_[i], entries_[draw_below(generator, i + 1)]);
    }
  }

  WorkItem item(std::uint64_t index) const override {
    const DatasetEntry& entry = entries_[index % entries_.size()];
    return {{}, entry.prompt, entry.output_len};
  }

 private:
  std::vector<DatasetEntry> entries_;
};

std::uint32_t estimated_tokens(const std::string& text) {
  constexpr std::size_t kBytesPerToken = 4;
  return static_cast<std::uint32_t>((text.size() + kBytesPerToken - 1) / kBytesPerToken);
}

/// Text of a conversation turn if one of `roles` speaks it, else nullptr.
const std::string* turn_text(const nlohmann::json& turn,
                             std::initializer_list<std::string_view> roles) {
  if (!turn.is_object() || !turn.contains("from") || !turn.contains("value")) {
    return nullptr;
  }
  const auto* speaker = turn["from"].get_ptr<const std::string*>();
  const bool speaks =
      speaker != nullptr && std::find(roles.begin(), roles.end(), *speaker) != roles.end();
  return speaks ? turn["value"].get_ptr<const std::string*>() : nullptr;
}

}  // namespace

std::unique_ptr<Workload> synthetic_workload(const ServeBenchOptions& options, bool use_tokens,
                                             const WordCost& word_cost) {
  if (options.input_len == 0 || options.output_len == 0) {
    throw BenchError("--input-len and --output-len must be at least 1");
  }
  if (!(options.range_ratio >= 0 && options.range_ratio < 1)) {
    throw BenchError("--range-ratio must be at least 0 and less than 1");
  }
  if (use_tokens && options.vocab_size <= kFirstTokenId) {
    throw BenchError(
        fmt::format("--vocab-size must be more than {}: smaller ids are left out, as "
                    "many vocabularies keep control tokens there",
                    kFirstTokenId));
  }
  return std::make_unique<SyntheticWorkload>(options, use_tokens, word_cost);
}

std::string random_words(std::uint64_t seed, std::uint32_t num_words) {
  std::mt19937_64 generator = item_generator(seed, 0);
  return draw_words(generator, num_words);
}

std::vector<DatasetEntry> parse_sharegpt(const std::string& json_text,
                                         const std::string& source_name) {
  constexpr std::uint32_t kMinTokens = 4;
  constexpr std::uint32_t kMaxPromptTokens = 1024;
  constexpr std::uint32_t kMaxTotalTokens = 2048;
  nlohmann::json root;
  try {
    root = nlohmann::json::parse(json_text);
  } catch (const nlohmann::json::exception& error) {
    throw BenchError(source_name + ": not JSON: " + error.what());
  }
  if (!root.is_array()) {
    throw BenchError(source_name +
                     ": expected a JSON array of {\"conversations\": [{\"from\": \"human\", "
                     "\"value\": ...}, {\"from\": \"gpt\", \"value\": ...}]}");
  }
  std::vector<DatasetEntry> entries;
  for (const nlohmann::json& conversation : root) {
    if (!conversation.is_object() || !conversation.contains("conversations")) {
      continue;
    }
    const nlohmann::json& turns = conversation["conversations"];
    if (!turns.is_array() || turns.size() < 2) {
      continue;
    }
    const std::string* prompt = turn_text(turns[0], {"human", "user"});
    const std::string* answer =
        turn_text(turns[1], {"gpt", "assistant", "chatgpt", "bing", "bard"});
    if (prompt == nullptr || answer == nullptr) {
      continue;
    }
    const std::uint32_t prompt_len = estimated_tokens(*prompt);
    const std::uint32_t output_len = estimated_tokens(*answer);
    if (prompt_len >= kMinTokens && output_len >= kMinTokens && prompt_len <= kMaxPromptTokens &&
        prompt_len + output_len <= kMaxTotalTokens) {
      entries.push_back({*prompt, output_len});
    }
  }
  if (entries.empty()) {
    throw BenchError(fmt::format(
        "{}: none of its {} entries is a conversation that begins with a person's message and an "
        "answer of usable length",
        source_name, root.size()));
  }
  return entries;
}

std::unique_ptr<Workload> sharegpt_workload(const std::filesystem::path& file, std::uint64_t seed) {
  // Looked at before it is opened: opening a FIFO waits for a writer, perhaps for ever.
  std::error_code error;
  std::ifstream in;
  if (std::filesystem::is_regular_file(file, error)) {
    in.open(file, std::ios::binary);
  }
  std::ostringstream text;
  if (in.is_open()) {
    text << in.rdbuf();
  }
  if (!in.is_open() || !in) {
    throw BenchError(file.string() +
                     ": can't read the dataset; give --dataset a ShareGPT JSON file");
  }
  return std::make_unique<DatasetWorkload>(parse_sharegpt(text.str(), file.string()), seed);
}

}  // namespace fastfd::bench
