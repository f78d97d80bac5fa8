#include <thread>

#include "fastfd/config/cluster_config.h"
#include "fastfd/device/cpu.h"

namespace fastfd::config {

HostFacts HostFacts::detect() {
  HostFacts host;
  // Counts the CPUs of this process's affinity mask, which container runtimes set; 0 is "unknown".
  const unsigned num_cores = std::thread::hardware_concurrency();
  host.num_cores = num_cores == 0 ? 1 : num_cores;
  host.has_bf16 = device::detect_isa() == device::Isa::kAvx512Bf16;
  return host;
}

}  // namespace fastfd::config
