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

}  // namespace

void add_role_commands(CLI::App& app, Action& action) {
  auto arguments = std::make_shared<RoleArguments>();
  add_role(app, "coordinator", "Run the coordinator of a cluster (launch does this)", *arguments)
      ->callback([&action, arguments] {
        action = [arguments] { return cluster::run_coordinator(load(*arguments, "coordinator")); };
      });

  CLI::App* attention =
      add_role(app, "attention-server", "Run one attention server (launch does this)", *arguments);
  attention->add_option("--rank", arguments->rank, "Which one, from 0")
      ->required()
      ->check(whole_number(0, kMaxServers - 1));
  attention->callback([&action, arguments] {
    action = [arguments] {
      const auto config = load(*arguments, "attention " + std::to_string(arguments->rank));
      check_rank(arguments->rank, config.attention.servers, "attention.servers");
      return cluster::run_attention_server(config, arguments->rank);
    };
  });

  CLI::App* ffn = add_role(app, "ffn-server", "Run one FFN server (launch does this)", *arguments);
  ffn->add_option("--rank", arguments->rank, "Which one, from 0")
      ->required()
      ->check(whole_number(0, kMaxServers - 1));
  ffn->callback([&action, arguments] {
    action = [arguments] {
      const auto config = load(*arguments, "ffn " + std::to_string(arguments->rank));
      check_rank(arguments->rank, config.ffn.servers, "ffn.servers");
      return cluster::run_ffn_server(config, arguments->rank);
    };
  });
}

}  // namespace fastfd::cli
