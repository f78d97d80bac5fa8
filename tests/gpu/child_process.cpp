#include "tests/gpu/child_process.h"

#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>

extern char** environ;  // NOLINT

namespace fastfd::testing {

using std::chrono::steady_clock;

ChildProcess::ChildProcess(const std::string& name, std::string flag,
                           std::vector<std::string> arguments) {
  const std::string address = "unix:@fastfd-probe-" + name + "-" + std::to_string(getpid());
  auto listener = transport::listen_unix(address);
  require(listener.status());
  arguments.insert(arguments.begin(), {"/proc/self/exe", std::move(flag), address});
  std::vector<char*> pointers;
  for (std::string& argument : arguments) {
    pointers.push_back(argument.data());
  }
  pointers.push_back(nullptr);
  if (posix_spawn(&pid_, pointers[0], nullptr, nullptr, pointers.data(), environ) != 0) {
    throw std::runtime_error("the peer process can't be started");
  }
  const auto end = steady_clock::now() + kStartTimeout;
  while (!socket_.is_open() && steady_clock::now() < end) {
    socket_ = transport::accept_unix(*listener);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  if (!socket_.is_open()) {
    kill();
    throw std::runtime_error("the peer process does not come up; its error is above");
  }
}

ChildProcess::~ChildProcess() { kill(); }

void ChildProcess::kill() {
  if (pid_ > 0) {
    ::kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    pid_ = -1;
  }
}

int ChildProcess::wait_for_exit() {
  const auto end = steady_clock::now() + std::chrono::seconds(20);
  while (pid_ > 0 && steady_clock::now() < end) {
    int status = 0;
    if (waitpid(pid_, &status, WNOHANG) == pid_) {
      pid_ = -1;
      return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return -1;
}

std::optional<int> run_as_child(
    int argc, char** argv, const std::string& flag,
    const std::function<void(transport::UniqueFd socket, std::span<char*> arguments)>& body) {
  if (argc < 3 || argv[1] != flag) {
    return std::nullopt;
  }
  try {
    auto socket = transport::connect_unix(argv[2]);
    require(socket.status());
    body(std::move(*socket), std::span(argv + 3, static_cast<std::size_t>(argc - 3)));
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "peer: %s\n", error.what());
    return 1;
  }
}

}  // namespace fastfd::testing
