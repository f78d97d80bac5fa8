#pragma once

/// Model architectures by the name that config.json gives them.

#include <memory>
#include <string>
#include <vector>

#include "fastfd/model/device_weights.h"
#include "fastfd/model/model.h"
#include "fastfd/model/safetensors.h"
#include "model/hf_config.h"
#include "model/tensor_source.h"

namespace fastfd::model {

/// How one family of models names its settings and tensors. Stateless, so thread-safe.
class Architecture {
 public:
  virtual ~Architecture() = default;

  /// As in config.json's `architectures`.
  virtual std::string name() const = 0;

  /// Fills the model's dimensions; throws ModelError for what can't be computed faithfully.
  virtual void read_config(const HfConfig& config, ModelSpec& spec) const = 0;

  /// Every tensor that any server will need is there with the right shape and a readable type.
  virtual void check_tensors(const Checkpoint& checkpoint, const ModelSpec& spec) const = 0;

  virtual AttentionWeights load_attention(const TensorSource& source, const ModelSpec& spec,
                                          LoadReport* report) const = 0;

  /// `experts`: global ids, ascending.
  virtual FfnWeights load_ffn(const TensorSource& source, const ModelSpec& spec,
                              const std::vector<std::uint32_t>& experts,
                              LoadReport* report) const = 0;

  /// The same in GPU memory.
  virtual DeviceAttentionWeights upload_attention(const TensorSource& source, const ModelSpec& spec,
                                                  const device::CudaDevice& device,
                                                  LoadReport* report) const = 0;
  virtual DeviceFfnWeights upload_ffn(const TensorSource& source, const ModelSpec& spec,
                                      const std::vector<std::uint32_t>& experts,
                                      const device::CudaDevice& device,
                                      LoadReport* report) const = 0;
};

class ArchitectureRegistry {
 public:
  /// Throws InternalError for a name that is taken.
  void add(std::unique_ptr<Architecture> architecture);

  /// Throws ModelError that lists the names there are; `where` names the file that asked.
  const Architecture& find(const std::string& name, const std::string& where) const;

  /// Ascending.
  std::vector<std::string> names() const;

  /// All that FastFD serves. Made on first use; safe to call from any thread.
  static const ArchitectureRegistry& builtin();

 private:
  std::vector<std::unique_ptr<Architecture>> architectures_;
};

std::unique_ptr<Architecture> make_qwen3_moe();

}  // namespace fastfd::model
