#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "fastfd/launcher/supervisor.h"
#include "launcher/log_prefixer.h"

namespace fastfd::launcher {
namespace {

using std::chrono::milliseconds;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

ChildSpec shell(const std::string& name, const std::string& script, bool restart = false,
                int stop_order = 0) {
  return {name, {"/bin/sh", "-c", script}, restart, stop_order};
}

/// A zombie does not count: who inherits an orphan may reap it late, or never in a container.
bool process_exists(pid_t pid) {
  std::ifstream stat("/proc/" + std::to_string(pid) + "/stat");
  std::string line;
  std::getline(stat, line);
  const std::size_t name_end = line.rfind(')');
  return name_end != std::string::npos && line.at(name_end + 2) != 'Z';
}

/// A supervisor whose log is kept, with a reaction to each line.
struct Fixture {
  explicit Fixture(std::vector<ChildSpec> children, SupervisorOptions options = {}) {
    options.log = [this](std::string_view line) {
      lines.emplace_back(line);
      if (on_line) {
        on_line(lines.back());
      }
    };
    supervisor = std::make_unique<Supervisor>(std::move(children), std::move(options));
  }
  std::size_t count(const std::string& line) const {
    return static_cast<std::size_t>(std::count(lines.begin(), lines.end(), line));
  }

  std::vector<std::string> lines;
  std::function<void(const std::string&)> on_line;
  std::unique_ptr<Supervisor> supervisor;
};

TEST(LogPrefixer, JoinsPiecesIntoLinesAndNamesTheChild) {
  std::vector<std::string> lines;
  LogPrefixer prefixer("ffn 1", [&](std::string_view line) { lines.emplace_back(line); });
  prefixer.feed("on");
  prefixer.feed("e\ntwo\r\n\nthr");
  EXPECT_THAT(lines, ElementsAre("[ffn 1] one", "[ffn 1] two", "[ffn 1] "));
  prefixer.flush();
  prefixer.flush();
  EXPECT_THAT(lines, ElementsAre("[ffn 1] one", "[ffn 1] two", "[ffn 1] ", "[ffn 1] thr"));
}

TEST(LogPrefixer, LeavesLinesAloneThatNameTheChildAlready) {
  std::vector<std::string> lines;
  LogPrefixer prefixer("ffn 1", [&](std::string_view line) { lines.emplace_back(line); });
  prefixer.feed("2026-01-31 12:00:00.123 info  [ffn 1] joined\n");
  prefixer.feed("2026-01-31 12:00:00.123 info  [ffn 2] joined\n");
  EXPECT_THAT(lines, ElementsAre("2026-01-31 12:00:00.123 info  [ffn 1] joined",
                                 "[ffn 1] 2026-01-31 12:00:00.123 info  [ffn 2] joined"));
}

TEST(LogPrefixer, CutsAnEndlessLineAndKeepsTheTail) {
  std::vector<std::string> lines;
  LogPrefixer prefixer("a", [&](std::string_view line) { lines.emplace_back(line); });
  prefixer.feed(std::string(70'000, 'x'));
  EXPECT_EQ(lines.size(), 1U);
  for (int i = 0; i < 8; ++i) {
    prefixer.feed(std::to_string(i) + "\n");
  }
  EXPECT_EQ(prefixer.tail(), "[a] 3\n[a] 4\n[a] 5\n[a] 6\n[a] 7");
}

TEST(Supervisor, ForwardsStdoutAndStderrAndReportsACleanEnd) {
  Fixture run({shell("coordinator", "echo out; echo err >&2; printf unfinished")});
  run.supervisor->mark_ready();
  const SupervisorResult result = run.supervisor->run();
  EXPECT_TRUE(result.ok) << result.reason;
  EXPECT_THAT(run.lines, Contains("[coordinator] out"));
  EXPECT_THAT(run.lines, Contains("[coordinator] err"));
  EXPECT_THAT(run.lines, Contains("[coordinator] unfinished"));
}

TEST(Supervisor, ForwardsManyLinesWithoutLossUpToTheLast) {
  Fixture run({shell("a", "i=0; while [ $i -lt 20000 ]; do echo $i; i=$((i+1)); done")});
  run.supervisor->mark_ready();
  EXPECT_TRUE(run.supervisor->run().ok);
  ASSERT_GE(run.lines.size(), 20000U);
  for (int i = 0; i < 20000; ++i) {
    ASSERT_EQ(run.lines[static_cast<std::size_t>(i)], "[a] " + std::to_string(i));
  }
}

TEST(Supervisor, DeathDuringStartUpEndsTheRunWithTheReason) {
  Fixture run({shell("coordinator", "exec sleep 1000"),
               shell("attention 0", "echo 'refused: other model'; exit 3", true, 1)});
  const SupervisorResult result = run.supervisor->run();
  EXPECT_FALSE(result.ok);
  EXPECT_THAT(result.reason, HasSubstr("attention 0 exited with status 3 during start-up"));
  EXPECT_THAT(result.reason, HasSubstr("refused: other model"));
  EXPECT_EQ(run.count("[attention 0] refused: other model"), 1U) << "it must not be restarted";
}

TEST(Supervisor, AProgramThatCannotBeExecutedIsNamed) {
  Fixture run({shell("coordinator", "exec sleep 1000"), {"ffn 0", {"/nonexistent/fastfd"}}});
  const SupervisorResult result = run.supervisor->run();
  EXPECT_FALSE(result.ok);
  EXPECT_THAT(result.reason, HasSubstr("/nonexistent/fastfd"));
  EXPECT_THAT(result.reason, HasSubstr("ffn 0"));
}

TEST(Supervisor, RestartsADeadServerAndGivesUpAfterTheLimit) {
  SupervisorOptions options;
  options.restart_backoff = milliseconds(1);
  options.max_restarts = 3;
  Fixture run(
      {shell("coordinator", "exec sleep 1000"), shell("ffn 0", "echo up; kill -SEGV $$", true, 1)},
      options);
  run.supervisor->mark_ready();
  const SupervisorResult result = run.supervisor->run();
  EXPECT_FALSE(result.ok);
  EXPECT_THAT(result.reason, HasSubstr("ffn 0 was killed by signal 11"));
  EXPECT_THAT(result.reason, HasSubstr("giving up after 3 restarts"));
  EXPECT_EQ(run.count("[ffn 0] up"), 4U);
}

TEST(Supervisor, BackoffDoublesUpToItsLimit) {
  SupervisorOptions options;
  options.restart_backoff = milliseconds(2);
  options.restart_backoff_limit = milliseconds(5);
  options.max_restarts = 4;
  Fixture run({shell("coordinator", "exec sleep 1000"), shell("ffn 0", "exit 1", true, 1)},
              options);
  run.supervisor->mark_ready();
  EXPECT_FALSE(run.supervisor->run().ok);
  EXPECT_THAT(run.lines, Contains(HasSubstr("restart 1 of 4 in 2 ms")));
  EXPECT_THAT(run.lines, Contains(HasSubstr("restart 2 of 4 in 4 ms")));
  EXPECT_THAT(run.lines, Contains(HasSubstr("restart 3 of 4 in 5 ms")));
  EXPECT_THAT(run.lines, Contains(HasSubstr("restart 4 of 4 in 5 ms")));
}

TEST(Supervisor, AServerThatWasStableStartsCountingAnew) {
  SupervisorOptions options;
  options.restart_backoff = milliseconds(1);
  options.max_restarts = 1;
  options.stable_after = milliseconds(0);  // every life counts as stable
  Fixture run({shell("coordinator", "exec sleep 1000"), shell("ffn 0", "echo up", true, 1)},
              options);
  run.on_line = [&](const std::string&) {
    if (run.count("[ffn 0] up") == 5) {
      run.supervisor->request_stop();
    }
  };
  run.supervisor->mark_ready();
  EXPECT_TRUE(run.supervisor->run().ok);
  EXPECT_GE(run.count("[ffn 0] up"), 5U);
}

TEST(Supervisor, DeathOfTheCoordinatorEndsTheRun) {
  Fixture run({shell("coordinator", "exit 7"), shell("ffn 0", "exec sleep 1000", true, 1)});
  run.supervisor->mark_ready();
  const SupervisorResult result = run.supervisor->run();
  EXPECT_FALSE(result.ok);
  EXPECT_THAT(result.reason, HasSubstr("coordinator exited with status 7"));
}

TEST(Supervisor, StopsInOrderAndTellsEachChildOnce) {
  const std::string trap = "trap 'echo term; exit 0' TERM; echo up; while :; do sleep 0.01; done";
  Fixture run({shell("ffn 0", trap, true, 1), shell("coordinator", trap, false, 0)});
  run.on_line = [&](const std::string&) {
    if (run.count("[ffn 0] up") + run.count("[coordinator] up") == 2) {
      run.supervisor->request_stop();
    }
  };
  EXPECT_TRUE(run.supervisor->run().ok);
  std::vector<std::string> terms;
  std::copy_if(run.lines.begin(), run.lines.end(), std::back_inserter(terms),
               [](const std::string& line) { return line.find("] term") != std::string::npos; });
  EXPECT_THAT(terms, ElementsAre("[coordinator] term", "[ffn 0] term"));
}

TEST(Supervisor, AChildThatIgnoresSigtermIsKilledWithinTheStopTimeout) {
  SupervisorOptions options;
  options.stop_timeout = milliseconds(500);
  options.drain_timeout = milliseconds(100);
  Fixture run(
      {shell("coordinator", "trap '' TERM; echo up; while :; do sleep 0.05; done"),
       shell("ffn 0", "trap 'echo term; exit 0' TERM; echo up; while :; do sleep 0.01; done", true,
             1)},
      options);
  std::chrono::steady_clock::time_point stop_at;
  run.on_line = [&](const std::string& line) {
    if (line.find("] up") != std::string::npos &&
        run.count("[ffn 0] up") + run.count("[coordinator] up") == 2) {
      stop_at = std::chrono::steady_clock::now();
      run.supervisor->request_stop();
    }
  };
  EXPECT_TRUE(run.supervisor->run().ok);
  EXPECT_EQ(run.count("[launcher] coordinator has not stopped yet; killing it"), 1U);
  EXPECT_EQ(run.count("[ffn 0] term"), 1U) << "it must not wait for the coordinator for ever";
  // Ten times the configured bound: this tells "never" from "in time", not fast from slow.
  EXPECT_LT(std::chrono::steady_clock::now() - stop_at, milliseconds(5000));
}

TEST(Supervisor, KillDoesNotWaitForTheStopTimeout) {
  SupervisorOptions options;
  options.stop_timeout = std::chrono::hours(1);
  options.drain_timeout = std::chrono::hours(1);
  Fixture run(
      {shell("coordinator", "trap 'echo term' TERM; echo up; while :; do sleep 0.01; done")},
      options);
  run.on_line = [&](const std::string& line) {
    if (line == "[coordinator] up") {
      run.supervisor->request_stop();
    } else if (line == "[coordinator] term") {
      run.supervisor->request_kill();
    }
  };
  EXPECT_FALSE(run.supervisor->run().ok) << "a script must be able to tell";
  EXPECT_EQ(run.count("[coordinator] term"), 1U);
}

TEST(Supervisor, GrandchildrenGoWithTheirParent) {
  Fixture run({shell("coordinator", "sleep 1000 & echo $!; wait")});
  pid_t grandchild = 0;
  run.on_line = [&](const std::string& line) {
    if (grandchild == 0) {
      grandchild = static_cast<pid_t>(std::stol(line.substr(line.find(']') + 2)));
      run.supervisor->request_stop();
    }
  };
  EXPECT_TRUE(run.supervisor->run().ok);
  ASSERT_GT(grandchild, 0);
  while (process_exists(grandchild)) {  // the test's time limit is the failure
    std::this_thread::sleep_for(milliseconds(5));
  }
}

TEST(Supervisor, NoOrphanIsLeftWhenTheSupervisingProcessIsKilled) {
  const auto folder = std::filesystem::temp_directory_path() /
                      ("fastfd_launcher_test_" + std::to_string(::getpid()));
  std::filesystem::create_directories(folder);
  const auto pid_file = folder / "pid";
  const std::string script = "echo $$ > " + pid_file.string() + ".new; mv " + pid_file.string() +
                             ".new " + pid_file.string() +
                             "; trap '' TERM INT HUP; exec sleep 1000";
  const pid_t launcher = ::fork();
  ASSERT_GE(launcher, 0);
  if (launcher == 0) {
    Supervisor supervisor({shell("coordinator", script)}, {});
    supervisor.run();
    ::_exit(0);
  }
  while (!std::filesystem::exists(pid_file)) {
    ASSERT_EQ(::waitpid(launcher, nullptr, WNOHANG), 0) << "the launcher ended by itself";
    std::this_thread::sleep_for(milliseconds(5));
  }
  pid_t child = 0;
  std::ifstream(pid_file) >> child;
  ASSERT_GT(child, 0);
  EXPECT_TRUE(process_exists(child));
  ::kill(launcher, SIGKILL);
  ::waitpid(launcher, nullptr, 0);
  while (process_exists(child)) {
    std::this_thread::sleep_for(milliseconds(5));
  }
  std::filesystem::remove_all(folder);
}

TEST(Supervisor, ADestroyedSupervisorLeavesNothingBehind) {
  EXPECT_THROW(Supervisor({{"nameless", {}}}, {}), std::invalid_argument);
  Fixture run({shell("coordinator", "echo $$; exec sleep 1000")});
  pid_t child = 0;
  run.on_line = [&](const std::string& line) {
    child = static_cast<pid_t>(std::stol(line.substr(line.find(']') + 2)));
    throw std::runtime_error("the log is full");
  };
  EXPECT_THROW(run.supervisor->run(), std::runtime_error);
  EXPECT_TRUE(process_exists(child));
  run.supervisor.reset();
  EXPECT_FALSE(process_exists(child));
}

}  // namespace
}  // namespace fastfd::launcher
