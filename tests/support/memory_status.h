#pragma once

/// Resident memory of this process, from /proc/self/status.

#include <cstdint>
#include <fstream>
#include <sstream>
#include <string>

namespace fastfd::test {

/// A value in bytes: "VmRSS" is what is resident now, "VmHWM" the most that ever was.
inline std::uint64_t memory_status(const std::string& key) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with(key + ":")) {
      std::istringstream fields(line.substr(key.size() + 1));
      std::uint64_t kib = 0;
      fields >> kib;
      return kib * 1024;
    }
  }
  return 0;
}

/// Growth of resident memory at its peak while `action` ran.
template <typename Action>
std::uint64_t peak_growth(const Action& action) {
  std::ofstream("/proc/self/clear_refs") << "5";  // sets the peak back to what is resident now
  const std::uint64_t before = memory_status("VmRSS");
  action();
  const std::uint64_t peak = memory_status("VmHWM");
  return peak > before ? peak - before : 0;
}

/// Shadow memory counts as resident: limits near the real need hold without sanitizers only.
inline constexpr bool kHasSanitizer =
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    true;
#else
    false;
#endif

}  // namespace fastfd::test
