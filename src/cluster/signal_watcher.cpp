#include "cluster/signal_watcher.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <system_error>
#include <utility>

namespace fastfd::cluster {

SignalWatcher::SignalWatcher() {
  sigset_t mask;
  sigemptyset(&mask);
  sigaddset(&mask, SIGINT);
  sigaddset(&mask, SIGTERM);
  if (pthread_sigmask(SIG_BLOCK, &mask, nullptr) != 0) {
    throw std::system_error(errno, std::generic_category(), "pthread_sigmask");
  }
  signals_ = signalfd(-1, &mask, SFD_CLOEXEC);
  stop_ = eventfd(0, EFD_CLOEXEC);
  if (signals_ < 0 || stop_ < 0) {
    throw std::system_error(errno, std::generic_category(), "signalfd");
  }
  thread_ = std::thread([this] { watch(); });
}

SignalWatcher::~SignalWatcher() {
  const std::uint64_t one = 1;
  [[maybe_unused]] const auto written = write(stop_, &one, sizeof(one));
  thread_.join();
  close(signals_);
  close(stop_);
}

void SignalWatcher::set_handler(std::function<void(const Signal&)> handler) {
  const std::lock_guard lock(mutex_);
  handler_ = std::move(handler);
}

void SignalWatcher::watch() {
  for (;;) {
    pollfd fds[2] = {{signals_, POLLIN, 0}, {stop_, POLLIN, 0}};
    if (poll(fds, 2, -1) < 0) {
      continue;  // EINTR: the only error these arguments allow
    }
    if ((fds[1].revents & POLLIN) != 0) {
      return;
    }
    signalfd_siginfo info{};
    if (read(signals_, &info, sizeof(info)) != sizeof(info)) {
      continue;
    }
    const std::lock_guard lock(mutex_);
    if (!handler_) {
      std::_Exit(EXIT_SUCCESS);
    }
    // The kernel's own signals (Ctrl-C) name no sender.
    const bool from_parent =
        info.ssi_code == SI_USER && static_cast<pid_t>(info.ssi_pid) == getppid();
    handler_({static_cast<int>(info.ssi_signo), from_parent});
  }
}

}  // namespace fastfd::cluster
