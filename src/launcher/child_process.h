#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace fastfd::launcher {

/// Owns a file descriptor.
class UniqueFd {
 public:
  UniqueFd() = default;
  explicit UniqueFd(int fd) : fd_(fd) {}
  UniqueFd(UniqueFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept {
    reset(std::exchange(other.fd_, -1));
    return *this;
  }
  UniqueFd(const UniqueFd&) = delete;
  UniqueFd& operator=(const UniqueFd&) = delete;
  ~UniqueFd() { reset(); }

  int get() const { return fd_; }
  bool is_open() const { return fd_ >= 0; }
  void reset(int fd = -1);

 private:
  int fd_ = -1;
};

struct ExitStatus {
  bool signalled = false;
  int code = 0;  ///< exit status, or the number of the signal

  bool is_clean() const { return !signalled && code == 0; }
  /// "exited with status 1", "was killed by signal 11 (Segmentation fault)"
  std::string to_string() const;
};

/// A child in a process group of its own (a Ctrl-C at the terminal reaches the launcher only, which
/// then stops its children in order), with stdin from /dev/null and stdout and stderr in one pipe.
/// The kernel kills it when the thread that spawned it dies. Not thread-safe.
class ChildProcess {
 public:
  ChildProcess() = default;

  /// Throws std::system_error, also when the program can't be executed.
  static ChildProcess spawn(const std::vector<std::string>& argv);

  bool is_running() const { return pid_ > 0; }
  pid_t pid() const { return pid_; }
  int output_fd() const { return output_.get(); }  ///< non-blocking read end; -1 once closed
  int exit_fd() const { return exit_.get(); }      ///< readable when it died; -1 on old kernels

  /// Appends what is there to `bytes`, at most one buffer. False when there is nothing (yet).
  bool read_output(std::string& bytes);
  void close_output() { output_.reset(); }

  /// Sends a signal to the whole process group.
  void send_signal(int signal) const;

  /// Reaps the child if it has died, and kills what it left behind in its group.
  std::optional<ExitStatus> try_reap();

 private:
  pid_t pid_ = -1;
  UniqueFd output_;
  UniqueFd exit_;
};

}  // namespace fastfd::launcher
