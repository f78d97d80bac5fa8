#include <array>
#include <string>

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/tensor_map.cuh"

namespace fastfd::kernels::cuda {
namespace {

using Encoder = decltype(&cuTensorMapEncodeTiled);

/// Found through the run-time library, so that programs start where there is no libcuda.
Status find_encoder(Encoder* encoder) {
  constexpr unsigned kSinceCuda = 12000;
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found{};
  const Status status =
      check_cuda(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, kSinceCuda,
                                                  cudaEnableDefault, &found),
                 "cudaGetDriverEntryPointByVersion");
  if (status.is_ok() && function == nullptr) {
    return {StatusCode::kUnavailable,
            "the driver has no cuTensorMapEncodeTiled: it must serve CUDA 12 or newer"};
  }
  *encoder = reinterpret_cast<Encoder>(function);
  return status;
}

}  // namespace

Status make_tensor_map(CUtensorMap* map, DType dtype, const void* base,
                       std::span<const TensorMapDim> dims) {
  Encoder encode = nullptr;
  if (Status status = find_encoder(&encode); !status.is_ok()) {
    return status;
  }
  std::array<cuuint64_t, kMaxTensorMapDims> extents{};
  std::array<cuuint64_t, kMaxTensorMapDims> strides{};  // of all dimensions but the first
  std::array<cuuint32_t, kMaxTensorMapDims> box{};
  std::array<cuuint32_t, kMaxTensorMapDims> steps{};
  for (std::size_t i = 0; i < dims.size(); ++i) {
    extents.at(i) = static_cast<cuuint64_t>(dims[i].extent);
    box.at(i) = static_cast<cuuint32_t>(dims[i].box);
    steps.at(i) = 1;
    if (i > 0) {
      strides.at(i - 1) = static_cast<cuuint64_t>(dims[i].stride_bytes);
    }
  }
  const CUtensorMapDataType type =
      dtype_bytes(dtype) == 2 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_UINT8;
  const CUresult result =
      encode(map, type, static_cast<cuuint32_t>(dims.size()), const_cast<void*>(base),
             extents.data(), strides.data(), box.data(), steps.data(),
             CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
             CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS) {
    return {StatusCode::kInvalidArgument,
            "cuTensorMapEncodeTiled: error " + std::to_string(static_cast<int>(result)) +
                " for rows of " + std::to_string(dims[0].extent) + " " + to_string(dtype) +
                " values: are the matrix and its rows aligned to 16 bytes?"};
  }
  return Status::ok();
}

}  // namespace fastfd::kernels::cuda
