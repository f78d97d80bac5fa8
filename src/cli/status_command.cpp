#include <fmt/format.h>

#include <chrono>
#include <cstdio>
#include <memory>
#include <string>

#include "cli/commands.h"
#include "cli/host_port.h"
#include "fastfd/control_plane/control_client.h"
#include "fastfd/launcher/http_probe.h"

namespace fastfd::cli {
namespace {

constexpr std::chrono::milliseconds kTimeout{3000};

struct StatusArguments {
  std::string config_file;
  std::string http;
  std::string control;
};

/// "200", "503 waiting for FFN server 1", "connection refused"
std::string describe(const Result<launcher::HttpReply>& reply) {
  if (!reply) {
    return reply.status().message();
  }
  return reply->status == 200 || reply->body.empty()
             ? std::to_string(reply->status)
             : fmt::format("{} {}", reply->status, reply->body);
}

void print_members(const control_plane::ClusterStatus& status) {
  fmt::print("{:<12}{:>5}{:>9}  {:<12}\n", "role", "rank", "pid", "state");
  for (const control_plane::MemberStatus& member : status.members) {
    fmt::print("{:<12}{:>5}{:>9}  {:<12}\n", to_string(member.role), member.rank,
               member.pid == 0 ? "-" : std::to_string(member.pid), member.state);
  }
}

int run(const StatusArguments& arguments) {
  config::CoordinatorConfig addresses;
  if (!arguments.config_file.empty()) {
    addresses = config::load_cluster_file(arguments.config_file).coordinator;
  }
  if (!arguments.http.empty()) {
    addresses.http = parse_host_port(arguments.http, "--http");
  }
  if (!arguments.control.empty()) {
    addresses.control = parse_host_port(arguments.control, "--control");
  }
  const std::string http_host = launcher::reachable_host(addresses.http.host);
  const auto health = launcher::http_get(http_host, addresses.http.port, "/health", kTimeout);
  const auto ready = launcher::http_get(http_host, addresses.http.port, "/ready", kTimeout);
  fmt::print("http     {}  health: {}  ready: {}\n", addresses.http.to_string(), describe(health),
             describe(ready));

  addresses.control.host = launcher::reachable_host(addresses.control.host);
  const auto status = control_plane::fetch_status(addresses.control.to_string(), kTimeout);
  if (!status) {
    fmt::print("control  {}  {}\n", addresses.control.to_string(), status.status().message());
    fmt::print(stderr,
               "fastfd: error: the coordinator does not answer; start a cluster with `fastfd "
               "launch`, or name it with --config, --http and --control\n");
    return 1;
  }
  fmt::print("control  {}  epoch {}, {}{}{}\n", addresses.control.to_string(), status->epoch,
             status->draining ? "draining" : (status->ready ? "ready" : "not ready"),
             status->detail.empty() ? "" : ": ", status->detail);
  print_members(*status);
  return ready && ready->status == 200 && status->ready ? 0 : 1;
}

}  // namespace

void add_status_command(CLI::App& app, Action& action) {
  auto arguments = std::make_shared<StatusArguments>();
  CLI::App* command = app.add_subcommand(
      "status", "Show the state of a running cluster; exit status 0 if it is ready");
  command->add_option("--config", arguments->config_file, "Cluster file that names the addresses")
      ->type_name("FILE");
  command->add_option("--http", arguments->http, "HTTP address; default 127.0.0.1:8000")
      ->type_name("HOST:PORT");
  command
      ->add_option("--control", arguments->control, "Control-plane address; default 127.0.0.1:7070")
      ->type_name("HOST:PORT");
  command->callback([&action, arguments] { action = [arguments] { return run(*arguments); }; });
}

}  // namespace fastfd::cli
