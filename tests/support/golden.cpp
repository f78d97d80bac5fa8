#include "support/golden.h"

#include <fstream>
#include <nlohmann/json.hpp>

namespace fastfd::testing {

Golden load_golden(const std::filesystem::path& model_dir) {
  std::ifstream file(model_dir / "golden.json");
  const auto json = nlohmann::json::parse(file);
  Golden golden;
  golden.max_new_tokens = json.at("max_new_tokens");
  golden.stop_ids = json.at("stop_ids").get<std::vector<TokenId>>();
  if (const auto error = json.find("bfloat16_error"); error != json.end()) {
    golden.bfloat16_error = {error->at("positions"), error->at("median"), error->at("p90"),
                             error->at("different")};
  }
  for (const auto& entry : json.at("prompts")) {
    GoldenPrompt prompt;
    prompt.id = entry.at("id");
    prompt.prompt_ids = entry.at("prompt_ids").get<std::vector<TokenId>>();
    prompt.output_ids = entry.at("output_ids").get<std::vector<TokenId>>();
    prompt.finish = entry.at("finish");
    prompt.smallest_gap = entry.at("gap").at("value");
    for (const auto& position : entry.at("top")) {
      auto& list = prompt.top.emplace_back();
      for (const auto& pair : position) {
        list.push_back({pair.at(0).get<TokenId>(), pair.at(1).get<float>()});
      }
    }
    golden.prompts.push_back(std::move(prompt));
  }
  return golden;
}

}  // namespace fastfd::testing
