#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "fastfd/bench/serve_bench.h"

namespace fastfd::bench {

/// What one request asks for.
struct WorkItem {
  std::vector<std::int32_t> tokens;  ///< prompt as token ids; empty: `text` is the prompt
  std::string text;
  std::uint32_t output_len = 1;  ///< max_tokens
};

/// How many prompt tokens a server counts for a text of n words: overhead + per_word * n.
struct WordCost {
  double overhead = 0;  ///< chat template, beginning-of-sequence token
  double per_word = 1;
};

/// An endless sequence of requests; item i depends on the seed and i only. Any thread.
class Workload {
 public:
  virtual ~Workload() = default;
  virtual WorkItem item(std::uint64_t index) const = 0;
};

/// Random token ids or words; lengths as in the options. Every prompt begins differently, so a
/// prefix cache finds nothing.
std::unique_ptr<Workload> synthetic_workload(const ServeBenchOptions& options, bool use_tokens,
                                             const WordCost& word_cost);

/// `num_words` random words: what text prompts are made of.
std::string random_words(std::uint64_t seed, std::uint32_t num_words);

/// Entry of a ShareGPT file: the first message of a person and the length of its answer.
struct DatasetEntry {
  std::string prompt;
  std::uint32_t output_len = 1;
};

/// Parses a JSON array of {"conversations": [{"from": "human", "value": ...}, {"from": "gpt",
/// ...}]}. No tokenizer is at hand, so lengths are estimated at 4 bytes a token. As is usual with
/// this data, entries under 4 tokens, prompts over 1,024 and totals over 2,048 are left out.
/// `source_name` is named in errors. Throws BenchError.
std::vector<DatasetEntry> parse_sharegpt(const std::string& json_text,
                                         const std::string& source_name);

/// Reads the file and goes round it in an order that the seed determines.
std::unique_ptr<Workload> sharegpt_workload(const std::filesystem::path& file, std::uint64_t seed);

}  // namespace fastfd::bench
