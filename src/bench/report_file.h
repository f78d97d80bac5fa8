#pragma once

#include <filesystem>
#include <string>
#include <string_view>

namespace fastfd::bench {

/// A file for a report that is written after a long run: opened before it, so that a path that
/// can't be written costs nothing. What an existing file holds stays until write().
class ReportFile {
 public:
  /// Throws BenchError.
  explicit ReportFile(const std::filesystem::path& path);
  /// Removes the file if the constructor made it and nothing was written.
  ~ReportFile();
  ReportFile(const ReportFile&) = delete;
  ReportFile& operator=(const ReportFile&) = delete;

  /// Replaces the contents. Throws BenchError. Call it once.
  void write(std::string_view text);

 private:
  [[noreturn]] void fail(int error) const;

  std::filesystem::path path_;
  int fd_ = -1;
  bool is_ours_ = false;  // made by the constructor and still empty
};

}  // namespace fastfd::bench
