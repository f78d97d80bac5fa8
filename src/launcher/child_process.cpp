#include "launcher/child_process.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <system_error>

namespace fastfd::launcher {
namespace {

[[noreturn]] void throw_errno(const std::string& what) {
  throw std::system_error(errno, std::generic_category(), what);
}

std::pair<UniqueFd, UniqueFd> make_pipe() {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) {
    throw_errno("pipe");
  }
  return {UniqueFd(ends[0]), UniqueFd(ends[1])};
}

/// What runs between fork and exec. The parent may have threads, so only async-signal-safe calls.
[[noreturn]] void exec_child(const char* path, char* const* argv, pid_t parent, int null_fd,
                             int output_fd, int error_fd) {
  const auto fail = [error_fd] {
    const int error = errno;
    (void)!::write(error_fd, &error, sizeof error);
    ::_exit(127);
  };
  if (::prctl(PR_SET_PDEATHSIG, SIGKILL) != 0) {
    fail();
  }
  // The parent may have died before prctl took effect; then no signal ever comes.
  if (::getppid() != parent) {
    ::_exit(127);
  }
  ::setpgid(0, 0);
  struct sigaction action {};
  action.sa_handler = SIG_DFL;
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGPIPE, SIGCHLD}) {
    ::sigaction(signal, &action, nullptr);
  }
  sigset_t none;
  ::sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  if (::dup2(null_fd, STDIN_FILENO) < 0 || ::dup2(output_fd, STDOUT_FILENO) < 0 ||
      ::dup2(output_fd, STDERR_FILENO) < 0) {
    fail();
  }
  ::execv(path, argv);
  fail();
  ::_exit(127);
}

}  // namespace

void UniqueFd::reset(int fd) {
  if (fd_ >= 0) {
    ::close(fd_);
  }
  fd_ = fd;
}

std::string ExitStatus::to_string() const {
  if (signalled) {
    const char* name = ::strsignal(code);  // NOLINT(concurrency-mt-unsafe): fixed text in glibc
    return fmt::format("was killed by signal {} ({})", code, name != nullptr ? name : "unknown");
  }
  return fmt::format("exited with status {}", code);
}

ChildProcess ChildProcess::spawn(const std::vector<std::string>& argv) {
  std::vector<char*> raw_argv;
  raw_argv.reserve(argv.size() + 1);
  for (const std::string& argument : argv) {
    raw_argv.push_back(const_cast<char*>(argument.c_str()));  // execv's signature predates const
  }
  raw_argv.push_back(nullptr);
  auto [output_read, output_write] = make_pipe();
  auto [error_read, error_write] = make_pipe();
  const UniqueFd null_fd(::open("/dev/null", O_RDWR | O_CLOEXEC));
  if (!null_fd.is_open()) {
    throw_errno("/dev/null");
  }
  const pid_t parent = ::getpid();
  const pid_t pid = ::fork();
  if (pid < 0) {
    throw_errno("fork");
  }
  if (pid == 0) {
    exec_child(raw_argv[0], raw_argv.data(), parent, null_fd.get(), output_write.get(),
               error_write.get());
  }
  output_write.reset();
  error_write.reset();

  // Closed by a successful exec; carries errno after a failed one.
  int exec_errno = 0;
  ssize_t got = 0;
  do {
    got = ::read(error_read.get(), &exec_errno, sizeof exec_errno);
  } while (got < 0 && errno == EINTR);
  if (got == static_cast<ssize_t>(sizeof exec_errno)) {
    ::waitpid(pid, nullptr, 0);
    throw std::system_error(exec_errno, std::generic_category(), argv[0]);
  }
  ChildProcess child;
  child.pid_ = pid;
  ::fcntl(output_read.get(), F_SETFL, O_NONBLOCK);
  child.output_ = std::move(output_read);
  child.exit_.reset(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  return child;
}

bool ChildProcess::read_output(std::string& bytes) {
  if (!output_.is_open()) {
    return false;
  }
  std::array<char, 16 << 10> buffer;
  const ssize_t got = ::read(output_.get(), buffer.data(), buffer.size());
  if (got > 0) {
    bytes.append(buffer.data(), static_cast<std::size_t>(got));
    return true;
  }
  if (got == 0 || (errno != EAGAIN && errno != EINTR)) {
    output_.reset();
  }
  return false;
}

void ChildProcess::send_signal(int signal) const {
  // Not reaped yet, so neither the process id nor the group's can belong to anybody else.
  if (pid_ > 0 && ::kill(-pid_, signal) != 0) {
    ::kill(pid_, signal);
  }
}

std::optional<ExitStatus> ChildProcess::try_reap() {
  if (pid_ <= 0) {
    return std::nullopt;
  }
  siginfo_t info{};
  // Look first, reap later: the zombie keeps its id taken while its group is killed.
  if (::waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG | WNOWAIT) != 0 ||
      info.si_pid == 0) {
    return std::nullopt;
  }
  ::kill(-pid_, SIGKILL);
  int raw = 0;
  while (::waitpid(pid_, &raw, 0) < 0 && errno == EINTR) {
  }
  pid_ = -1;
  exit_.reset();
  if (WIFSIGNALED(raw)) {
    return ExitStatus{true, WTERMSIG(raw)};
  }
  return ExitStatus{false, WEXITSTATUS(raw)};
}

}  // namespace fastfd::launcher
