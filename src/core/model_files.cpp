#include "fastfd/core/model_files.h"

#include <system_error>

namespace fastfd {

bool has_entry(const std::filesystem::path& file) {
  std::error_code error;
  return std::filesystem::exists(std::filesystem::symlink_status(file, error));
}

bool is_git_lfs_pointer(std::string_view begin_of_file) {
  return begin_of_file.starts_with("version https://git-lfs.github.com/spec/");
}

}  // namespace fastfd
