#pragma once

#include <filesystem>
#include <string_view>

namespace fastfd {

/// Whether a folder has an entry of this name. A link to a file that is not there is one: the file
/// was meant to be read, and opening it says what is missing. A file that may be left out is
/// absent only if this is false.
bool has_entry(const std::filesystem::path& file);

/// Whether a file that begins like this stands for one that Git LFS has not fetched.
bool is_git_lfs_pointer(std::string_view begin_of_file);

/// What to do about such a file.
inline constexpr const char* kGitLfsRemedy =
    "is a Git LFS pointer instead of the file; fetch it with `git lfs pull`";

}  // namespace fastfd
