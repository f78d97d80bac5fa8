#include <cstdint>
#include <memory>
#include <string>

#include "cli/commands.h"
#include "cli/option_values.h"
#include "fastfd/cluster/roles.h"
#include "fastfd/config/cluster_config.h"
#include "fastfd/core/logging.h"

namespace fastfd::cli {
namespace {

struct RoleArguments {
  std::string config_file;
  ServerRank rank = 0;
};

CLI::App* add_role(CLI::App& app, const char* name, const char* description,
                   RoleArguments& arguments) {
  CLI::App* command = app.add_subcommand(name, description);
  command->add_option("--config", arguments.config_file, "Cluster file (YAML)")
      ->required()
      ->type_name("FILE");
  return command;
}

config::ClusterConfig load(const RoleArguments& arguments, const std::string& process_name) {
  config::ClusterConfig config = config::load_cluster_file(arguments.config_file);
  init_logging(process_name, config.log_level);
  return config;
}

void check_rank(ServerRank rank, std::uint32_t num_servers, const char* key) {
  if (rank >= num_servers) {
    throw config::ConfigError("--rank " + std::to_string(rank) + " is out of range: " + key +
                              " is " + std::to_string(num_servers) + ", so ranks are 0 to " +
                              std::to_string(num_servers - 1));
  }
}

/// A rank's halves are one process in a co-located cluster, and two in any other.
void check_topology(const config::ClusterConfig& config, bool is_colocated_role) {
  if (config.is_colocated() != is_colocated_role) {
    throw config::ConfigError(
        config.source.string() + ": topology is " + config::to_string(config.topology) +
        "; its server commands are " +
        (config.is_colocated() ? "colocated-server" : "attention-server and ffn-server"));
  }
}

struct ServerCommand {
  const char* name;
  const char* description;
  const char* log_name;
  bool is_colocated;
  const char* servers_key;
  std::uint32_t (*num_servers)(const config::ClusterConfig& config);
  int (*run)(const config::ClusterConfig& config, ServerRank rank);
};

void add_server(CLI::App& app, Action& action, const std::shared_ptr<RoleArguments>& arguments,
                const ServerCommand& server) {
  CLI::App* command = add_role(app, server.name, server.description, *arguments);
  command->add_option("--rank", arguments->rank, "Which one, from 0")
      ->required()
      ->check(whole_number(0, kMaxServers - 1));
  command->callback([&action, arguments, server] {
    action = [arguments, server] {
      const auto config =
          load(*arguments, server.log_name + (" " + std::to_string(arguments->rank)));
      check_topology(config, server.is_colocated);
      check_rank(arguments->rank, server.num_servers(config), server.servers_key);
      return server.run(config, arguments->rank);
    };
  });
}

}  // namespace

void add_role_commands(CLI::App& app, Action& action) {
  auto arguments = std::make_shared<RoleArguments>();
  add_role(app, "coordinator", "Run the coordinator of a cluster (launch does this)", *arguments)
      ->callback([&action, arguments] {
        action = [arguments] { return cluster::run_coordinator(load(*arguments, "coordinator")); };
      });

  add_server(app, action, arguments,
             {"attention-server", "Run one attention server (launch does this)", "attention", false,
              "attention.servers", [](const auto& config) { return config.attention.servers; },
              cluster::run_attention_server});
  add_server(app, action, arguments,
             {"ffn-server", "Run one FFN server (launch does this)", "ffn", false, "ffn.servers",
              [](const auto& config) { return config.ffn.servers; }, cluster::run_ffn_server});
  add_server(
      app, action, arguments,
      {"colocated-server", "Run one rank of a co-located cluster (launch does this)", "server",
       true, "attention.servers", [](const auto& config) { return config.attention.servers; },
       cluster::run_colocated_server});
}

}  // namespace fastfd::cli
