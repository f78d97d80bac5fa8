#include <cstdint>
#include <limits>
#include <memory>
#include <string>

#include "cli/commands.h"
#include "cli/model_options.h"
#include "cli/option_values.h"
#include "fastfd/bench/serve_bench.h"
#include "fastfd/cluster/offline_bench.h"
#include "fastfd/config/cluster_config.h"
#include "fastfd/core/logging.h"

namespace fastfd::cli {
namespace {

using bench::Endpoint;
using bench::PromptKind;
using bench::ServeBenchOptions;

constexpr double kMostSeconds = 7 * 86'400;
constexpr std::uint64_t kMostTokens = 1U << 24;  // of one sequence: as model.max_model_len

/// Options whose form on the command line differs from the struct's.
struct ServeArguments {
  ServeBenchOptions options;
  double request_rate = 0;
  double temperature = 0;
  std::string slo;
  bool stop_at_eos = false;
};

void add_target_options(CLI::App& command, ServeArguments& arguments) {
  ServeBenchOptions& options = arguments.options;
  command.add_option("--url", options.url, "Server: http://HOST:PORT[/PREFIX]")
      ->capture_default_str();
  command.add_option("--model", options.model, "Model name; default: the server's first");
  command.add_option("--api-key", options.api_key, "Sent as bearer token");
  command.add_option("--endpoint", options.endpoint, "completions (default) or chat")
      ->type_name("KIND")
      ->transform(
          one_of<Endpoint>({{"completions", Endpoint::kCompletions}, {"chat", Endpoint::kChat}}));
  command.add_option("--timeout", options.timeout_s, "Seconds that one request may take")
      ->check(number(LowEnd::kAbove, 0, kMostSeconds))
      ->capture_default_str();
}

void add_load_options(CLI::App& command, ServeArguments& arguments) {
  ServeBenchOptions& options = arguments.options;
  command
      .add_option("--request-rate", arguments.request_rate,
                  "Requests per second with Poisson arrivals; default: a closed loop")
      ->check(number(LowEnd::kAbove, 0, 1e6));
  command
      .add_option("--concurrency", options.concurrency,
                  "Clients of the closed loop (default 8), or most requests in flight")
      ->check(whole_number(1, 65'536));
  command
      .add_option("--num-requests", options.num_requests,
                  "How many requests; default 100 unless --duration is given")
      ->check(whole_number(1, 100'000'000));
  command.add_option("--duration", options.duration_s, "Seconds during which requests begin")
      ->check(number(LowEnd::kAbove, 0, kMostSeconds));
  command.add_option("--warmup", options.num_warmup, "Requests before the measurement")
      ->check(whole_number(0, 1'000'000))
      ->capture_default_str();
  command.add_option("--seed", options.seed, "Of prompts, lengths and arrivals")
      ->check(whole_number(0, std::numeric_limits<std::uint64_t>::max()))
      ->capture_default_str();
}

void add_prompt_options(CLI::App& command, ServeArguments& arguments) {
  ServeBenchOptions& options = arguments.options;
  command.add_option("--input-len", options.input_len, "Tokens of a synthetic prompt")
      ->check(whole_number(1, kMostTokens))
      ->capture_default_str();
  command.add_option("--output-len", options.output_len, "Tokens to generate")
      ->check(whole_number(1, kMostTokens))
      ->capture_default_str();
  command
      .add_option("--range-ratio", options.range_ratio,
                  "Lengths are uniform within this share of the length around it")
      ->check(number(LowEnd::kFrom, 0, 0.999))
      ->capture_default_str();
  command.add_option("--prompts", options.prompt_kind, "Synthetic prompts: auto, tokens or text")
      ->type_name("KIND")
      ->transform(one_of<PromptKind>({{"auto", PromptKind::kAuto},
                                      {"tokens", PromptKind::kTokens},
                                      {"text", PromptKind::kText}}));
  command.add_option("--vocab-size", options.vocab_size, "Random token ids are smaller than this")
      ->check(whole_number(1, std::numeric_limits<std::int32_t>::max()))
      ->capture_default_str();
  command.add_option("--dataset", options.dataset, "ShareGPT-format JSON file of prompts")
      ->type_name("FILE");
  command.add_option("--temperature", arguments.temperature, "Default: the server's")
      ->check(number(LowEnd::kFrom, 0, 100));
  command.add_flag("--stop-at-eos", arguments.stop_at_eos,
                   "Let the model end early instead of asking for exact lengths");
}

void add_serve(CLI::App& bench, Action& action) {
  auto arguments = std::make_shared<ServeArguments>();
  CLI::App* command =
      bench.add_subcommand("serve", "Put load on an OpenAI-compatible server and measure it");
  add_target_options(*command, *arguments);
  add_load_options(*command, *arguments);
  add_prompt_options(*command, *arguments);
  command->add_option("--slo", arguments->slo,
                      "Objectives that goodput counts, such as ttft=200ms,tpot=30ms,e2e=5s");
  command
      ->add_option("--json", arguments->options.json_file,
                   "Write figures and requests as JSON; - is stdout, instead of the table")
      ->type_name("FILE");
  command->add_option("--html", arguments->options.html_file, "Write a report with plots")
      ->type_name("FILE");
  command->callback([&action, command, arguments] {
    action = [command, arguments] {
      ServeBenchOptions& options = arguments->options;
      if (command->count("--request-rate") > 0) {
        options.request_rate = arguments->request_rate;
      }
      if (command->count("--temperature") > 0) {
        options.temperature = arguments->temperature;
      }
      if (command->count("--slo") > 0) {
        options.slo = bench::parse_slo(arguments->slo);
      }
      options.ignore_eos = !arguments->stop_at_eos;
      return bench::run_serve_bench(options);
    };
  });
}

struct OfflineArguments {
  std::string file;
  ModelArguments model;
  bool colocated = false;
  cluster::OfflineBenchOptions options;
};

void add_offline(CLI::App& bench, Action& action) {
  auto arguments = std::make_shared<OfflineArguments>();
  cluster::OfflineBenchOptions& options = arguments->options;
  CLI::App* command =
      bench.add_subcommand("offline", "Measure the engine of a cluster file without HTTP");
  command->add_option("file", arguments->file, "Cluster file (YAML)")->required();
  command->add_option("--batch", options.batch, "Sequences that run together")
      ->check(whole_number(1, 65'536))
      ->capture_default_str();
  command->add_option("--prompt-len", options.prompt_len, "Tokens of each prompt")
      ->check(whole_number(1, kMostTokens))
      ->capture_default_str();
  command->add_option("--output-len", options.output_len, "Tokens generated for each sequence")
      ->check(whole_number(1, kMostTokens))
      ->capture_default_str();
  command->add_option("--repeat", options.repeat, "Runs; the median is reported")
      ->check(whole_number(1, 10'000))
      ->capture_default_str();
  add_model_options(*command, arguments->model);
  command->add_flag("--colocated", arguments->colocated,
                    "As with `topology: colocated` in the file: the baseline");
  command->add_flag("--json", options.json, "Print JSON instead of the table");
  command->callback([&action, arguments] {
    action = [arguments] {
      auto config = config::load_cluster_file(arguments->file);
      arguments->model.apply_to(config.model);
      if (arguments->colocated) {
        config = config::as_colocated(std::move(config));
      }
      init_logging("bench", config.log_level == "info" ? "warn" : config.log_level);
      return cluster::run_offline_bench(config, arguments->options);
    };
  });
}

}  // namespace

void add_bench_commands(CLI::App& app, Action& action) {
  CLI::App* bench = app.add_subcommand("bench", "Measure a server or the engine");
  add_serve(*bench, action);
  add_offline(*bench, action);
}

}  // namespace fastfd::cli
