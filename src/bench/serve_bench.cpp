#include "fastfd/bench/serve_bench.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "bench/load_generator.h"
#include "bench/progress.h"
#include "bench/report.h"
#include "bench/report_file.h"
#include "bench/url.h"
#include "bench/workload.h"

namespace fastfd::bench {
namespace {

/// The user interrupted before anything was measured.
struct Interrupted {};

/// The same request again and again: probes.
class FixedWorkload final : public Workload {
 public:
  explicit FixedWorkload(WorkItem item) : item_(std::move(item)) {}
  WorkItem item(std::uint64_t /*index*/) const override { return item_; }

 private:
  WorkItem item_;
};

void check_options(const ServeBenchOptions& options) {
  const auto is_positive = [](double value) { return std::isfinite(value) && value > 0; };
  if (options.request_rate && !is_positive(*options.request_rate)) {
    throw BenchError("--request-rate must be a number above 0");
  }
  if (!(options.duration_s == 0 || is_positive(options.duration_s)) ||
      !is_positive(options.timeout_s)) {
    throw BenchError("--duration and --timeout must be numbers above 0");
  }
  if (options.temperature && !(std::isfinite(*options.temperature) && *options.temperature >= 0)) {
    throw BenchError("--temperature must be a number from 0");
  }
  if (options.endpoint == Endpoint::kChat && options.prompt_kind == PromptKind::kTokens) {
    throw BenchError("--prompts tokens needs --endpoint completions: chat takes text only");
  }
  if (!options.dataset.empty() && options.prompt_kind == PromptKind::kTokens) {
    throw BenchError("--prompts tokens and --dataset exclude each other: a dataset is text");
  }
}

std::string remedy(const ServeBenchOptions& options) {
  return "; is the server running? Start one with `fastfd launch configs/quickstart.yaml`, or name "
         "another with --url (now " +
         options.url + ")";
}

/// The model to ask for; the server's first unless one is named. Also finds out whether there is a
/// server at all.
std::string choose_model(LoadGenerator& generator, const ServeBenchOptions& options,
                         const Url& url) {
  const WholeReply reply = generator.get("/v1/models");
  if (!reply.connected) {
    throw BenchError(url.to_string() + ": " + reply.error + remedy(options));
  }
  if (!options.model.empty()) {
    return options.model;
  }
  if (reply.status == 503) {
    throw BenchError(url.to_string() + ": not ready (HTTP 503: " + error_message(reply.body) +
                     "); try again when GET /ready answers 200");
  }
  std::string model = reply.status == 200 ? first_model(reply.body) : "";
  if (model.empty()) {
    throw BenchError(fmt::format("{}/v1/models: HTTP {} without a model; name one with --model",
                                 url.to_string(), reply.status));
  }
  return model;
}

RequestRecord run_one(LoadGenerator& generator, const Dialect& dialect, WorkItem item) {
  Arrivals arrivals;
  arrivals.concurrency = 1;
  arrivals.num_requests = 1;
  LoadResult result = generator.run(dialect, FixedWorkload(std::move(item)), arrivals, {});
  if (result.interrupted || result.records.empty()) {
    throw Interrupted{};
  }
  return std::move(result.records.front());
}

WorkItem probe_item(bool use_tokens, std::uint32_t num_words) {
  WorkItem item;
  if (use_tokens) {
    item.tokens = {101, 102, 103, 104};
  } else {
    item.text = random_words(num_words, num_words);
  }
  return item;
}

/// What the server understands beyond plain OpenAI requests. Strict servers answer 400 to a field
/// they don't know; the fewest features are given up that make a request pass.
struct Probed {
  Dialect dialect;
  bool token_prompts = false;
};
Probed probe(LoadGenerator& generator, const ServeBenchOptions& options, const Url& url,
             const std::string& model) {
  const bool may_use_tokens = options.endpoint == Endpoint::kCompletions &&
                              options.dataset.empty() && options.prompt_kind != PromptKind::kText;
  const bool must_use_tokens = options.prompt_kind == PromptKind::kTokens;
  struct Features {
    bool tokens, ignore_eos, usage;
  };
  constexpr std::array<Features, 8> kInOrder{{{true, true, true},
                                              {true, false, true},
                                              {false, true, true},
                                              {true, true, false},
                                              {false, false, true},
                                              {true, false, false},
                                              {false, true, false},
                                              {false, false, false}}};
  RequestRecord last;
  for (const Features& features : kInOrder) {
    if ((features.tokens && !may_use_tokens) || (!features.tokens && must_use_tokens) ||
        (features.ignore_eos && !options.ignore_eos)) {
      continue;
    }
    const Dialect dialect{model, options.endpoint, features.ignore_eos, features.usage,
                          options.temperature};
    last = run_one(generator, dialect, probe_item(features.tokens, 4));
    if (last.ok()) {
      return {dialect, features.tokens};
    }
    if (last.failure != FailureKind::kHttpStatus ||
        (last.http_status != 400 && last.http_status != 422)) {
      break;
    }
  }
  throw BenchError(fmt::format("{}{}: a first request for model '{}' failed: {}{}{}{}",
                               url.to_string(), endpoint_path(options.endpoint), model,
                               last.failure_name(), last.failure_detail.empty() ? "" : ": ",
                               last.failure_detail,
                               last.failure == FailureKind::kConnect ? remedy(options) : ""));
}

/// Prompt tokens as a function of words, from the server's own counts of two prompts.
WordCost measure_word_cost(LoadGenerator& generator, const Dialect& dialect) {
  constexpr std::uint32_t kFewWords = 16;
  constexpr std::uint32_t kManyWords = 64;
  const RequestRecord few = run_one(generator, dialect, probe_item(false, kFewWords));
  const RequestRecord many = run_one(generator, dialect, probe_item(false, kManyWords));
  WordCost cost;
  if (few.ok() && many.ok() && many.prompt_tokens > few.prompt_tokens) {
    cost.per_word =
        static_cast<double>(many.prompt_tokens - few.prompt_tokens) / (kManyWords - kFewWords);
    cost.overhead = std::max(0.0, few.prompt_tokens - cost.per_word * kFewWords);
  }
  return cost;
}

void warm_up(LoadGenerator& generator, const Dialect& dialect, const Workload& workload,
             const ServeBenchOptions& options) {
  if (options.num_warmup == 0) {
    return;
  }
  Arrivals arrivals;
  constexpr std::uint32_t kMostAtOnce = 16;
  arrivals.concurrency = std::min(options.num_warmup, kMostAtOnce);
  arrivals.num_requests = options.num_warmup;
  arrivals.first_item = std::uint64_t{1} << 40;  // never measured later: no prefix-cache hits
  ProgressDisplay display(arrivals, "warm-up");
  const auto show = [&display](const LoadProgress& progress) { display.show(progress); };
  if (generator.run(dialect, workload, arrivals, show).interrupted) {
    throw Interrupted{};
  }
}

/// The files that were asked for; opened before anything is measured.
struct ReportFiles {
  explicit ReportFiles(const ServeBenchOptions& options) {
    if (!options.json_file.empty() && options.json_file != "-") {
      json.emplace(options.json_file);
    }
    if (!options.html_file.empty()) {
      html.emplace(options.html_file);
    }
  }
  std::optional<ReportFile> json;
  std::optional<ReportFile> html;
};

void publish(const Report& report, ReportFiles& files) {
  const bool json_to_stdout = report.options.json_file == "-";
  fmt::print("{}", json_to_stdout ? to_json(report).dump(2) + "\n" : table(report));
  std::fflush(stdout);
  if (files.json) {
    files.json->write(to_json(report).dump(2) + "\n");
  }
  if (files.html) {
    files.html->write(to_html(report));
  }
}

/// Whether the figures are of a server that served; says why not.
bool judge(const Report& report) {
  const std::uint64_t num_failed = report.summary.num_requests - report.summary.num_ok;
  if (report.given_up) {
    fmt::print(stderr, "fastfd: error: the server was away for too long; the run ended early\n");
  }
  if (report.summary.num_ok > 0 && num_failed <= report.summary.num_ok) {
    return !report.given_up;
  }
  fmt::print(stderr, "fastfd: error: {} of {} requests failed: the figures say little\n",
             num_failed, report.summary.num_requests);
  return false;
}

Report measure(ServeBenchOptions options) {
  const Url url = parse_url(options.url);
  options.url = url.to_string();
  if (options.num_requests == 0 && options.duration_s <= 0) {
    options.num_requests = 100;
  }
  if (!options.request_rate && options.concurrency == 0) {
    options.concurrency = 8;
  }
  LoadGenerator generator(url, options.api_key, options.timeout_s);
  const std::string model = choose_model(generator, options, url);
  const Probed probed = probe(generator, options, url, model);
  std::unique_ptr<Workload> workload;
  if (options.dataset.empty()) {
    const WordCost cost = probed.token_prompts || !probed.dialect.usage
                              ? WordCost{}
                              : measure_word_cost(generator, probed.dialect);
    workload = synthetic_workload(options, probed.token_prompts, cost);
  } else {
    workload = sharegpt_workload(options.dataset, options.seed);
  }
  warm_up(generator, probed.dialect, *workload, options);

  const Arrivals arrivals{options.request_rate, options.concurrency, options.num_requests,
                          options.duration_s, options.seed};
  LoadResult result;
  {
    ProgressDisplay display(arrivals);
    result = generator.run(probed.dialect, *workload, arrivals,
                           [&display](const LoadProgress& progress) { display.show(progress); });
  }
  Summary summary = summarize(result.records, options.slo);
  return {std::move(options), probed.dialect,     probed.token_prompts,     result.interrupted,
          result.given_up,    std::move(summary), std::move(result.records)};
}

}  // namespace

int run_serve_bench(const ServeBenchOptions& options) {
  constexpr int kInterruptedStatus = 130;
  try {
    check_options(options);
    ReportFiles files(options);
    const Report report = measure(options);
    publish(report, files);
    if (report.interrupted) {
      return kInterruptedStatus;
    }
    return judge(report) ? 0 : 1;
  } catch (const Interrupted&) {
    return kInterruptedStatus;
  }
}

}  // namespace fastfd::bench
