#include "cluster/process_key.h"

#include <fmt/format.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <fstream>
#include <iterator>
#include <limits>
#include <sstream>

namespace fastfd::cluster {
namespace {

std::string read_file(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

/// "<boot id> pid:[4026531836]"; empty if unknown.
std::string own_place() {
  std::istringstream boot_id(read_file("/proc/sys/kernel/random/boot_id"));
  std::string boot;
  boot_id >> boot;
  std::array<char, 64> name_space{};
  const auto length = ::readlink("/proc/self/ns/pid", name_space.data(), name_space.size());
  if (boot.empty() || length <= 0) {
    return {};
  }
  return boot + " " + std::string(name_space.data(), static_cast<std::size_t>(length));
}

// glibc 2.36 declares its wrappers for C only.
int open_process(pid_t pid) { return static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)); }
bool send_signal(int process, int signal) {
  return ::syscall(SYS_pidfd_send_signal, process, signal, nullptr, 0) == 0;
}

/// Field 22 of /proc/PID/stat, counted behind the name, which may hold anything; empty if there is
/// no such process.
std::string start_time(const std::string& pid) {
  constexpr int kFieldsBetween = 19;  // state is field 3
  const std::string stat = read_file("/proc/" + pid + "/stat");
  const auto name_end = stat.rfind(')');
  if (name_end == std::string::npos) {
    return {};
  }
  std::istringstream fields(stat.substr(name_end + 1));
  std::string field;
  for (int i = 0; i <= kFieldsBetween; ++i) {
    fields >> field;
  }
  return fields ? field : std::string();
}

}  // namespace

std::string own_process_key() {
  const std::string place = own_place();
  const std::string started = start_time("self");
  return place.empty() || started.empty() ? std::string() : place + " " + started;
}

Status kill_process(std::uint32_t pid, const std::string& process_key) {
  const std::string place = own_place();
  if (place.empty() || process_key.compare(0, place.size() + 1, place + " ") != 0) {
    return {StatusCode::kUnavailable,
            "it does not run in the coordinator's PID namespace, so nothing proves which process "
            "it is"};
  }
  if (pid <= 1 || pid > static_cast<std::uint32_t>(std::numeric_limits<pid_t>::max())) {
    return {StatusCode::kUnavailable, fmt::format("{} is no process of a server", pid)};
  }
  // The descriptor holds on to the process, so the number can't change hands between look and kill.
  const int process = open_process(static_cast<pid_t>(pid));
  if (process < 0) {
    return errno == ESRCH ? Status::ok() : Status(StatusCode::kUnavailable, std::strerror(errno));
  }
  Status status;
  if (place + " " + start_time(std::to_string(pid)) == process_key &&
      !send_signal(process, SIGKILL) && errno != ESRCH) {
    status = {StatusCode::kUnavailable, std::strerror(errno)};
  }
  ::close(process);
  return status;
}

}  // namespace fastfd::cluster
