#pragma once

#include <cstdint>
#include <string_view>

namespace fastfd::device {

/// Whether code built for CMake's CUDA_ARCHITECTURES list ("90a-real;100") runs on a GPU of this
/// compute capability. A number runs on its generation from its minor version on, and as PTX (no
/// "-real") on everything newer; with the letter `a` on exactly its own. Words such as `native`
/// can't be told from here and count as true.
bool architectures_run_on(std::string_view architectures, std::uint32_t major, std::uint32_t minor);

/// What set_cuda_environment asked for; 0 before it was called.
std::uint32_t num_hardware_queues();

}  // namespace fastfd::device
