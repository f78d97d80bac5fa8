#pragma once

#include <CLI/CLI.hpp>
#include <functional>

namespace fastfd::cli {

/// What the command line asks for; run after parsing, so that its errors are not taken for CLI11's.
/// Returns the exit status.
using Action = std::function<int()>;

// Each adds its subcommands to `app`; choosing one sets `action`.
void add_launch_commands(CLI::App& app, Action& action);  ///< launch, serve
void add_bench_commands(CLI::App& app, Action& action);   ///< bench serve, bench offline
void add_role_commands(CLI::App& app, Action& action);    ///< coordinator, attention-server, ...
void add_status_command(CLI::App& app, Action& action);   ///< status

}  // namespace fastfd::cli
