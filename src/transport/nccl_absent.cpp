// Stands in for transport nccl where CUDA or NCCL was not there at build time: says so.
#include "fastfd/transport/nccl.h"

namespace fastfd::transport {

struct NcclEndpoint::Impl {
  std::string address;
};

Status nccl_availability() {
  return {StatusCode::kUnavailable,
          "transport nccl is not in this build; install the CUDA toolkit and libnccl-dev (or give "
          "-DNCCL_ROOT=FOLDER) and build again"};
}

NcclEndpoint::NcclEndpoint(const device::CudaDevice& /*device*/,
                           const NcclEndpointOptions& /*options*/) {
  throw device::DeviceError(nccl_availability().message());
}
NcclEndpoint::~NcclEndpoint() = default;
const std::string& NcclEndpoint::address() const { return impl_->address; }
Result<std::shared_ptr<DevicePort>> NcclEndpoint::connect(Epoch /*epoch*/,
                                                          std::span<const NcclMember> /*members*/,
                                                          const ConnectOptions& /*options*/) {
  return nccl_availability();
}

}  // namespace fastfd::transport
