#include "fastfd/device/cuda_window.h"

#include <cuda.h>
#include <fmt/format.h>

#include <cstdint>
#include <utility>

#include "device/cuda_check.h"
#include "device/cuda_driver.h"

namespace fastfd::device {
namespace {

/// A handle on an allocation: one more reference to its memory, beside those of its mappings and
/// exported descriptors.
class Allocation {
 public:
  Allocation() = default;
  explicit Allocation(CUmemGenericAllocationHandle handle) : handle_(handle), is_held_(true) {}
  Allocation(Allocation&& other) noexcept
      : handle_(other.handle_), is_held_(std::exchange(other.is_held_, false)) {}
  Allocation& operator=(Allocation&&) = delete;
  ~Allocation() {
    if (is_held_) {
      cuda_driver().mem_release(handle_);
    }
  }
  CUmemGenericAllocationHandle handle() const { return handle_; }

 private:
  CUmemGenericAllocationHandle handle_ = 0;
  bool is_held_ = false;
};

/// An address range with the allocation behind it, undone in the reverse order.
class Mapping {
 public:
  explicit Mapping(Allocation allocation) : allocation_(std::move(allocation)) {}
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  ~Mapping() {
    if (is_mapped_) {
      cuda_driver().mem_unmap(address_, num_bytes_);
    }
    if (address_ != 0) {
      cuda_driver().mem_address_free(address_, num_bytes_);
    }
  }

  Status map(std::size_t num_bytes) {
    const CudaDriver& driver = cuda_driver();
    num_bytes_ = num_bytes;
    Status status = to_status(driver.mem_address_reserve(&address_, num_bytes, 0, 0, 0),
                              "reserving addresses for a window");
    if (status) {
      status = to_status(driver.mem_map(address_, num_bytes, 0, allocation_.handle(), 0),
                         "mapping a window");
      is_mapped_ = status.is_ok();
    }
    return status;
  }

  Status allow_access(std::uint32_t device_index) const {
    CUmemAccessDesc access{};
    access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    access.location.id = static_cast<int>(device_index);
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    return to_status(cuda_driver().mem_set_access(address_, num_bytes_, &access, 1),
                     "giving a GPU access to a window");
  }

  CUdeviceptr address() const { return address_; }
  CUmemGenericAllocationHandle allocation() const { return allocation_.handle(); }

 private:
  Allocation allocation_;
  CUdeviceptr address_ = 0;
  std::size_t num_bytes_ = 0;
  bool is_mapped_ = false;
};

/// `num_bytes` in whole units of what the owner's GPU allocates.
Result<std::size_t> rounded_bytes(std::size_t num_bytes, const CUmemAllocationProp& properties) {
  std::size_t granularity = 0;
  if (Status status = to_status(cuda_driver().mem_get_allocation_granularity(
                                    &granularity, &properties, CU_MEM_ALLOC_GRANULARITY_MINIMUM),
                                "cuMemGetAllocationGranularity");
      !status) {
    return status;
  }
  return (num_bytes + granularity - 1) / granularity * granularity;
}

Status check_size(std::size_t num_bytes) {
  return num_bytes == 0 ? Status(StatusCode::kInvalidArgument, "a window of no bytes")
                        : Status::ok();
}

Status zero_fill(const CudaDevice& device, std::byte* data, std::size_t num_bytes) {
  const DeviceStream stream(device);
  Status status = fill_async(data, 0, num_bytes, stream.handle());
  return status ? stream.synchronize() : status;
}

}  // namespace

Result<DeviceWindow> DeviceWindow::create(const CudaDevice& owner, std::size_t num_bytes) {
  if (Status status = check_size(num_bytes); !status) {
    return status;
  }
  if (Status status = owner.make_current(); !status) {
    return status;
  }
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  properties.location.id = static_cast<int>(owner.index());
  const auto mapped_bytes = rounded_bytes(num_bytes, properties);
  if (!mapped_bytes) {
    return mapped_bytes.status();
  }
  CUmemGenericAllocationHandle handle = 0;
  if (Status status = to_status(
          cuda_driver().mem_create(&handle, *mapped_bytes, &properties, 0),
          fmt::format("allocating a window of {} bytes on {}", num_bytes, owner.to_string())
              .c_str());
      !status) {
    return status;
  }
  auto mapping = std::make_shared<Mapping>(Allocation(handle));
  Status status = mapping->map(*mapped_bytes);
  if (status) {
    status = mapping->allow_access(owner.index());
  }
  DeviceWindow window;
  window.data_ = reinterpret_cast<std::byte*>(mapping->address());
  if (status) {
    status = zero_fill(owner, window.data_, *mapped_bytes);
  }
  if (!status) {
    return status;
  }
  window.mapping_ = std::move(mapping);
  window.num_bytes_ = num_bytes;
  window.mapped_bytes_ = *mapped_bytes;
  return window;
}

Result<DeviceWindow> DeviceWindow::map_peer(const CudaDevice& device, int fd,
                                            std::size_t num_bytes) {
  if (Status status = check_size(num_bytes); !status) {
    return status;
  }
  if (Status status = device.make_current(); !status) {
    return status;
  }
  const CudaDriver& driver = cuda_driver();
  CUmemGenericAllocationHandle handle = 0;
  if (Status status =
          to_status(driver.mem_import_from_shareable_handle(
                        &handle, reinterpret_cast<void*>(static_cast<std::uintptr_t>(fd)),
                        CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
                    "importing a peer's window");
      !status) {
    return status;
  }
  Allocation allocation(handle);
  CUmemAllocationProp properties{};
  if (Status status = to_status(driver.mem_get_allocation_properties(&properties, handle),
                                "reading the properties of a peer's window");
      !status) {
    return status;
  }
  const auto mapped_bytes = rounded_bytes(num_bytes, properties);
  if (!mapped_bytes) {
    return mapped_bytes.status();
  }
  auto mapping = std::make_shared<Mapping>(std::move(allocation));
  if (Status status = mapping->map(*mapped_bytes); !status) {
    return status;
  }
  if (const Status status = mapping->allow_access(device.index()); !status) {
    return Status(StatusCode::kUnavailable,
                  fmt::format("{}: {}; the two GPUs must be peers (nvidia-smi topo -p2p rw)",
                              device.to_string(), status.message()));
  }
  DeviceWindow window;
  window.data_ = reinterpret_cast<std::byte*>(mapping->address());
  window.mapping_ = std::move(mapping);
  window.num_bytes_ = num_bytes;
  window.mapped_bytes_ = *mapped_bytes;
  return window;
}

Result<int> DeviceWindow::export_fd() const {
  const auto* mapping = static_cast<const Mapping*>(mapping_.get());
  int fd = -1;
  if (Status status =
          to_status(cuda_driver().mem_export_to_shareable_handle(
                        &fd, mapping->allocation(), CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
                    "exporting a window");
      !status) {
    return status;
  }
  return fd;
}

Status DeviceWindow::allow_access(const CudaDevice& device) const {
  return static_cast<const Mapping*>(mapping_.get())->allow_access(device.index());
}

}  // namespace fastfd::device
