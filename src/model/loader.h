#pragma once

/// Puts a model's tensors into the memory of one role.

#include <vector>

#include "fastfd/core/expert_placement.h"
#include "fastfd/model/device_weights.h"
#include "fastfd/model/model.h"
#include "model/tensor_map.h"
#include "model/tensor_source.h"

namespace fastfd::model {

/// The experts that one FFN server holds of a sparse layer, and the slices of a dense one.
struct FfnShare {
  std::vector<std::uint32_t> experts;  ///< global ids, ascending
  std::vector<std::uint32_t> slices;   ///< ascending
  std::uint32_t num_slices = 1;        ///< of all servers together

  static FfnShare of(const ExpertPlacement& placement, ServerRank ffn_rank);
  /// Hidden units of the widest slice.
  std::uint32_t slice_width(std::uint32_t intermediate_dim) const;
};

AttentionWeights load_attention(const TensorSource& source, const ModelSpec& spec,
                                const TensorMap& tensors, LoadReport* report);
FfnWeights load_ffn(const TensorSource& source, const ModelSpec& spec, const TensorMap& tensors,
                    const FfnShare& share, LoadReport* report);

/// The same in GPU memory.
DeviceAttentionWeights upload_attention(const TensorSource& source, const ModelSpec& spec,
                                        const TensorMap& tensors, const device::CudaDevice& device,
                                        LoadReport* report);
DeviceFfnWeights upload_ffn(const TensorSource& source, const ModelSpec& spec,
                            const TensorMap& tensors, const ExpertPlacement& placement,
                            ServerRank ffn_rank, const device::CudaDevice& device,
                            LoadReport* report);

}  // namespace fastfd::model
