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

struct Golden {
  std::uint32_t max_new_tokens = 0;
  std::vector<TokenId> stop_ids;
  std::vector<GoldenPrompt> prompts;
};

/// Throws if the file can't be read.
Golden load_golden(const std::filesystem::path& model_dir);

}  // namespace fastfd::testing
