#include "device/cuda_build.h"

#include <atomic>
#include <cstdlib>
#include <string>

#include "fastfd/device/cuda.h"

namespace fastfd::device {
namespace {

std::atomic<std::uint32_t> hardware_queues{0};

bool runs_on(std::string_view architecture, std::uint32_t major, std::uint32_t minor) {
  std::uint32_t number = 0;
  std::size_t at = 0;
  for (; at < architecture.size() && architecture[at] >= '0' && architecture[at] <= '9'; ++at) {
    number = number * 10 + static_cast<std::uint32_t>(architecture[at] - '0');
  }
  if (at == 0) {
    return !architecture.empty();  // `native`, `all`: for whatever the building machine had
  }
  const std::string_view rest = architecture.substr(at);
  const bool exact = rest.starts_with('a');
  const bool has_code = !rest.ends_with("-virtual");
  const bool has_ptx = !rest.ends_with("-real");
  const std::uint32_t gpu = major * 10 + minor;
  if (exact) {
    return gpu == number;
  }
  return (has_code && number / 10 == major && number <= gpu) || (has_ptx && number <= gpu);
}

}  // namespace

bool architectures_run_on(std::string_view architectures, std::uint32_t major,
                          std::uint32_t minor) {
  while (!architectures.empty()) {
    const std::size_t end = architectures.find(';');
    if (runs_on(architectures.substr(0, end), major, minor)) {
      return true;
    }
    architectures = end == std::string_view::npos ? "" : architectures.substr(end + 1);
  }
  return false;
}

std::uint32_t num_hardware_queues() { return hardware_queues.load(std::memory_order_relaxed); }

void set_cuda_environment(std::uint32_t num_queues) {
  hardware_queues.store(num_queues, std::memory_order_relaxed);
  setenv("CUDA_MODULE_LOADING", "EAGER", 1);
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", std::to_string(num_queues).c_str(), 1);
}

}  // namespace fastfd::device
