#include "model/device_uploader.h"

#include <algorithm>
#include <cstring>

namespace fastfd::model {
namespace {

constexpr std::size_t kBlockBytes = std::size_t{64} << 20;
constexpr std::size_t kStagingBytes = std::size_t{8} << 20;
constexpr std::size_t kAlignment = 256;

void require(const Status& status) {
  if (!status) {
    throw device::DeviceError("putting weights on the GPU: " + status.message());
  }
}

}  // namespace

DeviceUploader::DeviceUploader(const device::CudaDevice& device)
    : device_(device), stream_(device), staging_(device, kStagingBytes) {}

std::byte* DeviceUploader::reserve_bytes(std::size_t num_bytes) {
  const std::size_t rounded = (num_bytes + kAlignment - 1) / kAlignment * kAlignment;
  if (blocks_.empty() || blocks_.back().num_bytes() - used_bytes_ < rounded) {
    blocks_.emplace_back(device_, std::max(rounded, kBlockBytes));
    used_bytes_ = 0;
  }
  std::byte* memory = blocks_.back().data() + used_bytes_;
  used_bytes_ += rounded;
  return memory;
}

void DeviceUploader::copy_bytes(std::byte* to, const std::byte* from, std::size_t num_bytes) {
  for (std::size_t done = 0; done < num_bytes;) {
    const std::size_t now = std::min(num_bytes - done, kStagingBytes);
    std::memcpy(staging_.data(), from + done, now);
    require(device::copy_async(to + done, staging_.data(), now, stream_.handle()));
    require(stream_.synchronize());
    done += now;
  }
}

std::vector<device::DeviceBuffer> DeviceUploader::take() {
  require(stream_.synchronize());
  return std::move(blocks_);
}

}  // namespace fastfd::model
