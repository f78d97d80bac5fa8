#include "cluster/process_key.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <string>

namespace fastfd::cluster {
namespace {

/// A process that says its key and waits to be killed.
class Victim {
 public:
  Victim() {
    std::array<int, 2> pipe{};
    EXPECT_EQ(::pipe(pipe.data()), 0);
    pid_ = ::fork();
    if (pid_ == 0) {
      const std::string key = own_process_key();
      const bool told = ::write(pipe[1], key.data(), key.size()) > 0;
      ::close(pipe[1]);
      while (told) {
        ::pause();
      }
      ::_exit(1);
    }
    ::close(pipe[1]);
    std::array<char, 256> bytes{};
    for (ssize_t got = 0; (got = ::read(pipe[0], bytes.data(), bytes.size())) > 0;) {
      key_.append(bytes.data(), static_cast<std::size_t>(got));
    }
    ::close(pipe[0]);
  }
  ~Victim() {
    if (!reaped_) {
      ::kill(pid_, SIGKILL);
      ::waitpid(pid_, nullptr, 0);
    }
  }
  Victim(const Victim&) = delete;
  Victim& operator=(const Victim&) = delete;

  std::uint32_t pid() const { return static_cast<std::uint32_t>(pid_); }
  const std::string& key() const { return key_; }
  bool lives() const { return ::waitpid(pid_, nullptr, WNOHANG) == 0; }
  bool was_killed() {
    int status = 0;
    reaped_ = ::waitpid(pid_, &status, 0) == pid_;
    return reaped_ && WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
  }

 private:
  pid_t pid_ = -1;
  std::string key_;
  bool reaped_ = false;
};

TEST(ProcessKey, TheProcessThatHasTheKeyIsKilled) {
  Victim victim;
  ASSERT_FALSE(victim.key().empty());
  EXPECT_TRUE(kill_process(victim.pid(), victim.key()));
  EXPECT_TRUE(victim.was_killed());
  EXPECT_TRUE(kill_process(victim.pid(), victim.key())) << "gone already is as good";
}

// The pid was given out anew: the server is dead, and a stranger has its number.
TEST(ProcessKey, AStrangerWithThePidIsLeftAlone) {
  const Victim stranger;
  const std::string place = stranger.key().substr(0, stranger.key().rfind(' '));
  EXPECT_TRUE(kill_process(stranger.pid(), place + " 1"));
  EXPECT_TRUE(stranger.lives());
}

// In another container the same number is another process.
TEST(ProcessKey, APidOfAnotherPlaceIsLeftAlone) {
  const Victim stranger;
  for (const std::string& key :
       {std::string(), std::string("x"), "other " + stranger.key(), stranger.key().substr(1)}) {
    EXPECT_EQ(kill_process(stranger.pid(), key).code(), StatusCode::kUnavailable) << key;
    EXPECT_TRUE(stranger.lives());
  }
}

// kill(0) would mean this process's group, kill(-1) every process.
TEST(ProcessKey, NumbersThatMeanManyProcessesAreRefused) {
  for (const std::uint32_t pid : {0U, 1U, 0xffffffffU, 0x80000001U}) {
    EXPECT_EQ(kill_process(pid, own_process_key()).code(), StatusCode::kUnavailable);
  }
}

}  // namespace
}  // namespace fastfd::cluster
