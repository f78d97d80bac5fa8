#include <fmt/format.h>

#include <cstdio>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "cli/commands.h"
#include "cli/host_port.h"
#include "cli/model_options.h"
#include "cli/option_values.h"
#include "fastfd/cluster/blueprint.h"
#include "fastfd/cluster/roles.h"
#include "fastfd/launcher/launch.h"

namespace fastfd::cli {
namespace {

/// Options that `launch` and `serve` share; empty strings leave the file's value.
struct LaunchArguments {
  std::string file_or_model;
  std::string http;
  std::string control;
  std::string log_level;
  std::optional<double> drain_s;
  ModelArguments model;
  bool print_config = false;
};

void add_options(CLI::App& command, LaunchArguments& arguments) {
  command.add_option("--http", arguments.http, "HTTP address instead of coordinator.http")
      ->type_name("HOST:PORT");
  command
      .add_option("--control", arguments.control,
                  "Control-plane address instead of coordinator.control")
      ->type_name("HOST:PORT");
  command.add_option("--log-level", arguments.log_level, "trace, debug, info, warn, error or off")
      ->check(CLI::IsMember({"trace", "debug", "info", "warn", "error", "off"}))
      ->type_name("LEVEL");
  command
      .add_option("--drain-seconds", arguments.drain_s,
                  "How long running requests may go on after SIGINT or SIGTERM, instead of "
                  "faults.drain_timeout_ms")
      ->check(number(LowEnd::kFrom, 0, 86'400))
      ->type_name("SECONDS");
  add_model_options(command, arguments.model);
  add_reasoning_option(command, arguments.model);
  command.add_flag("--print-config", arguments.print_config,
                   "Print the effective configuration and start nothing");
}

config::ClusterConfig with_overrides(config::ClusterConfig config,
                                     const LaunchArguments& arguments) {
  if (!arguments.http.empty()) {
    config.coordinator.http = parse_host_port(arguments.http, "--http");
  }
  if (!arguments.control.empty()) {
    config.coordinator.control = parse_host_port(arguments.control, "--control");
  }
  if (!arguments.log_level.empty()) {
    config.log_level = arguments.log_level;
  }
  if (arguments.drain_s) {
    config.faults.drain_timeout_ms = static_cast<std::uint32_t>(*arguments.drain_s * 1000);
  }
  arguments.model.apply_to(config.model);
  // Values from the command line obey the rules of the file as well.
  const std::filesystem::path source = config.source;
  config = config::parse_cluster_text(config::to_yaml(config),
                                      "the command line's values in what --print-config shows");
  config.source = source;
  return config;
}

int run(const config::ClusterConfig& loaded, const LaunchArguments& arguments) {
  const config::ClusterConfig config = with_overrides(loaded, arguments);
  if (arguments.print_config) {
    fmt::print("{}", config::to_yaml(config));
    return 0;
  }
  cluster::require_devices(config);  // one message here instead of one from every process
  using std::chrono::milliseconds;
  launcher::LaunchOptions options;
  options.executable = std::filesystem::read_symlink("/proc/self/exe");
  // The servers outlast the coordinator's drain: what is cut off hears "shutting down" from it, not
  // that a server was lost. With the default of 3 s all of it stays under 5 s.
  const milliseconds drain(config.faults.drain_timeout_ms);
  options.drain_timeout = drain + milliseconds(400);
  options.stop_timeout = drain + milliseconds(1500);
  // What every role would find: said once, and under the name of the user's file.
  options.before_start = [&config] { cluster::check_servable(config); };
  return launcher::run_launch(config, options);
}

}  // namespace

void add_launch_commands(CLI::App& app, Action& action) {
  auto arguments = std::make_shared<LaunchArguments>();
  CLI::App* launch = app.add_subcommand("launch", "Start and supervise the cluster of a file");
  launch->add_option("file", arguments->file_or_model, "Cluster file (YAML)")->required();
  add_options(*launch, *arguments);
  launch->callback([&action, arguments] {
    action = [arguments] {
      return run(config::load_cluster_file(arguments->file_or_model), *arguments);
    };
  });

  CLI::App* serve =
      app.add_subcommand("serve", "Serve a model on this machine, with a topology chosen for it");
  serve
      ->add_option("model", arguments->file_or_model,
                   "Hugging Face model folder, or a model id such as Qwen/Qwen3-30B-A3B that the "
                   "local Hugging Face cache has")
      ->required();
  add_options(*serve, *arguments);
  serve->callback([&action, arguments] {
    action = [arguments] {
      return run(config::default_cluster(arguments->file_or_model, config::HostFacts::detect(),
                                         arguments->model.load_format.value_or(LoadFormat::kAuto)),
                 *arguments);
    };
  });
}

}  // namespace fastfd::cli
