#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "bench/metrics.h"
#include "bench/openai_api.h"

namespace fastfd::bench {

/// All that a report is made of.
struct Report {
  ServeBenchOptions options;
  Dialect dialect;
  bool token_prompts = false;
  bool interrupted = false;
  bool given_up = false;  ///< the server was away, see Arrivals::give_up_after_s
  Summary summary;
  std::vector<RequestRecord> records;
};

/// For people, about 80 columns.
std::string table(const Report& report);

/// For programs: options, summary, failures, and one entry a request.
nlohmann::json to_json(const Report& report);

/// One HTML file with the summary and plots, nothing loaded from elsewhere.
std::string to_html(const Report& report);

}  // namespace fastfd::bench
