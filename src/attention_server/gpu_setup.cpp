#include "attention_server/gpu_setup.h"

#include <fmt/format.h>

#include <cstring>

#include "fastfd/core/check.h"

namespace fastfd::attention_server {

void require(const Status& status, const char* what) {
  if (!status) {
    throw device::DeviceError(fmt::format("{}: {}", what, status.message()));
  }
}

void upload_bytes_once(const device::DeviceBuffer& to, const device::CudaDevice& device,
                       const device::DeviceStream& stream, const void* from,
                       std::size_t num_bytes) {
  check(to.num_bytes() == num_bytes, "an array of another length than its values");
  const device::PinnedBuffer pinned(device, num_bytes);
  std::memcpy(pinned.data(), from, num_bytes);
  require(device::copy_async(to.data(), pinned.data(), num_bytes, stream.handle()), "upload");
  require(stream.synchronize(), "upload");
}

std::uint64_t GpuRopeTable::num_bytes(std::uint32_t num_positions,
                                      const kernels::RopeParams& rope) {
  const auto num_pairs = static_cast<std::uint64_t>(rope.rotary_dim / 2);
  return 2 * num_positions * num_pairs * sizeof(float);
}

GpuRopeTable::GpuRopeTable(std::uint32_t num_positions, const kernels::RopeParams& rope,
                           const device::CudaDevice& device, const device::DeviceStream& stream)
    : cos_(device, num_bytes(num_positions, rope) / 2),
      sin_(device, num_bytes(num_positions, rope) / 2) {
  const auto table = kernels::RopeTable::make(num_positions, rope);
  upload_once(cos_, device, stream, table.cos);
  upload_once(sin_, device, stream, table.sin);
}

}  // namespace fastfd::attention_server
