#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "fastfd/core/ids.h"
#include "fastfd/core/request.h"

namespace fastfd::testing {

/// One prompt of a model's golden.json: what transformers answers, greedily, in float arithmetic.
struct GoldenPrompt {
  std::string id;
  std::vector<TokenId> prompt_ids;
  std::vector<TokenId> output_ids;
  std::string finish;                          ///< "stop" or "length"
  double smallest_gap = 0.0;                   ///< least lead of the chosen token along the path
  std::vector<std::vector<TokenLogprob>> top;  ///< of the first positions, descending
};

/// How far transformers' own bf16 arithmetic is from its float32 one along the same answers, at the
/// positions where the likeliest token leads by at least kClearLead. Of the log-probability of that
/// token.
struct Bfloat16Error {
  static constexpr double kClearLead = 0.1;
  std::size_t positions = 0;
  double median = 0.0;
  double p90 = 0.0;
  std::size_t different = 0;  ///< positions at which another token is the likeliest
};

struct Golden {
  std::uint32_t max_new_tokens = 0;
  Bfloat16Error bfloat16_error;  ///< of tests/reference/models only
  std::vector<TokenId> stop_ids;
  std::vector<GoldenPrompt> prompts;
};

/// Throws if the file can't be read.
Golden load_golden(const std::filesystem::path& model_dir);

}  // namespace fastfd::testing
