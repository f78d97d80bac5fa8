#include <fmt/format.h>

#include <cstdio>
#include <exception>

#include "cli/commands.h"

int main(int argc, char** argv) {
  try {
    CLI::App app("FastFD: LLM serving with attention and feed-forward layers on different servers",
                 "fastfd");
    app.set_version_flag("--version", "fastfd " FASTFD_VERSION);
    fastfd::cli::Action action;
    fastfd::cli::add_launch_commands(app, action);
    fastfd::cli::add_bench_commands(app, action);
    fastfd::cli::add_status_command(app, action);
    fastfd::cli::add_role_commands(app, action);
    constexpr int kUsageStatus = 2;
    try {
      app.parse(argc, argv);
    } catch (const CLI::ParseError& error) {
      return app.exit(error) == 0 ? 0 : kUsageStatus;
    }
    if (!action) {
      // Not CLI11's require_subcommand, which hides the misspelt word: "a subcommand is required".
      const auto chosen = app.get_subcommands();
      fmt::print(stderr, "{}", (chosen.empty() ? &app : chosen.front())->help());
      return kUsageStatus;
    }
    return action();
  } catch (const std::exception& error) {
    fmt::print(stderr, "fastfd: error: {}\n", error.what());
    return 1;
  }
}
