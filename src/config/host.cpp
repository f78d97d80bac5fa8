#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <thread>

#include "fastfd/config/cluster_config.h"
#include "fastfd/device/cpu.h"

namespace fastfd::config {
namespace {

/// What the machine has, or the less that a container is allowed (cgroup v2).
std::uint64_t detect_memory_bytes() {
  const long pages = ::sysconf(_SC_PHYS_PAGES);
  const long page_bytes = ::sysconf(_SC_PAGESIZE);
  if (pages <= 0 || page_bytes <= 0) {
    return 0;
  }
  const std::uint64_t machine =
      static_cast<std::uint64_t>(pages) * static_cast<std::uint64_t>(page_bytes);
  std::uint64_t limit = 0;
  std::ifstream file("/sys/fs/cgroup/memory.max");  // "max" leaves the limit as it is
  return file >> limit && limit > 0 ? std::min(machine, limit) : machine;
}

}  // namespace

HostFacts HostFacts::detect() {
  HostFacts host;
  // Counts the CPUs of this process's affinity mask, which container runtimes set; 0 is "unknown".
  const unsigned num_cores = std::thread::hardware_concurrency();
  host.num_cores = num_cores == 0 ? 1 : num_cores;
  host.memory_bytes = detect_memory_bytes();
  host.has_bf16 = device::detect_isa() == device::Isa::kAvx512Bf16;
  return host;
}

}  // namespace fastfd::config
