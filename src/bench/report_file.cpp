#include "bench/report_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>
#include <utility>

#include "fastfd/bench/serve_bench.h"

namespace fastfd::bench {

ReportFile::ReportFile(const std::filesystem::path& path) : path_(path) {
  constexpr int kFlags = O_WRONLY | O_CLOEXEC;
  constexpr mode_t kMode = 0666;
  fd_ = ::open(path.c_str(), kFlags | O_CREAT | O_EXCL, kMode);
  is_ours_ = fd_ >= 0;
  if (!is_ours_ && errno == EEXIST) {
    // Non-blocking: a FIFO that nobody reads is an error, not a wait without end.
    fd_ = ::open(path.c_str(), kFlags | O_CREAT | O_NONBLOCK, kMode);
  }
  if (fd_ < 0) {
    fail(errno);
  }
  ::fcntl(fd_, F_SETFL, 0);
}

ReportFile::~ReportFile() {
  if (fd_ >= 0) {
    ::close(fd_);
  }
  if (is_ours_) {
    ::unlink(path_.c_str());
  }
}

void ReportFile::write(std::string_view text) {
  struct stat info {};
  if (::fstat(fd_, &info) == 0 && S_ISREG(info.st_mode) && ::ftruncate(fd_, 0) != 0) {
    fail(errno);
  }
  is_ours_ = false;  // half a report is still worth more than none
  while (!text.empty()) {
    const ssize_t written = ::write(fd_, text.data(), text.size());
    if (written >= 0) {
      text.remove_prefix(static_cast<std::size_t>(written));
    } else if (errno != EINTR) {
      fail(errno);
    }
  }
  const int fd = std::exchange(fd_, -1);
  if (::close(fd) != 0) {
    fail(errno);
  }
}

void ReportFile::fail(int error) const {
  throw BenchError(path_.string() + ": can't write the report: " +
                   std::generic_category().message(error) + "; check the folder and the disk");
}

}  // namespace fastfd::bench
