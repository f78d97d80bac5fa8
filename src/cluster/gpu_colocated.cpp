#include "cluster/gpu_colocated.h"

#include <utility>

#include "ffn_server/gpu_worker.h"

namespace fastfd::cluster {
namespace {

class Experts final : public GpuColocatedExperts {
 public:
  Experts(const Blueprint& blueprint, ServerRank rank,
          std::shared_ptr<const model::DeviceFfnWeights> weights, const device::GpuPart& gpu)
      : num_ranks_(blueprint.config().ffn.servers),
        worker_(blueprint.ffn_options(rank), blueprint.spec(), std::move(weights), gpu,
                ffn_server::GpuFfnWorker::Streams::kOfItsAttention) {}

  void use_port(std::shared_ptr<transport::DevicePort> port) override { port_ = std::move(port); }
  bool has_peers() const override { return num_ranks_ > 1; }
  Status begin_epoch(const device::DeviceStream& stream) override {
    return worker_.begin_epoch(*port_, stream);
  }
  Status run(const attention_server::InlineHop& hop) override {
    return worker_.run_inline({.hop = hop.hop,
                               .bucket = hop.bucket * num_ranks_,
                               .state = {hop.control, nullptr, hop.abort},
                               .abort_word = hop.abort_word,
                               .times = hop.times,
                               .waits = has_peers(),
                               .stream = hop.stream});
  }

 private:
  const std::uint32_t num_ranks_;
  ffn_server::GpuFfnWorker worker_;
  std::shared_ptr<transport::DevicePort> port_;
};

}  // namespace

std::unique_ptr<GpuColocatedExperts> make_gpu_colocated_experts(
    const Blueprint& blueprint, ServerRank rank,
    std::shared_ptr<const model::DeviceFfnWeights> weights, const device::GpuPart& gpu) {
  return std::make_unique<Experts>(blueprint, rank, std::move(weights), gpu);
}

}  // namespace fastfd::cluster
