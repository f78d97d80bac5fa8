#include "cluster/gpu_colocated.h"

#include <utility>

#include "ffn_server/gpu_worker.h"

namespace fastfd::cluster {
namespace {

// The attention server's graphs hold the experts' kernels.
ffn_server::FfnServerOptions without_graphs(ffn_server::FfnServerOptions options) {
  options.max_graph_rows = 0;
  return options;
}

class Experts final : public GpuColocatedExperts {
 public:
  Experts(const Blueprint& blueprint, std::shared_ptr<const model::DeviceFfnWeights> weights,
          const device::GpuPart& gpu)
      : worker_(without_graphs(blueprint.ffn_options(0)), blueprint.spec(), std::move(weights),
                gpu) {}

  void use_port(std::shared_ptr<transport::DevicePort> port) override { port_ = std::move(port); }
  Status begin_epoch() override { return worker_.begin_epoch(*port_); }
  Status run(const layout::LaneHop& hop, std::uint32_t bucket, const layout::LaneControl* control,
             layout::AbortState* abort, device::CudaStream stream) override {
    return worker_.run_inline(hop, bucket, control, abort, stream);
  }

 private:
  ffn_server::GpuFfnWorker worker_;
  std::shared_ptr<transport::DevicePort> port_;
};

}  // namespace

std::unique_ptr<GpuColocatedExperts> make_gpu_colocated_experts(
    const Blueprint& blueprint, std::shared_ptr<const model::DeviceFfnWeights> weights,
    const device::GpuPart& gpu) {
  return std::make_unique<Experts>(blueprint, std::move(weights), gpu);
}

}  // namespace fastfd::cluster
