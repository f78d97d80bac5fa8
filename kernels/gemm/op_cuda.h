#pragma once

/// C = A * W^T on the tensor cores, for the dense layers of the attention server: projections, LM
/// head, shared experts.

#include <cstdint>

#include "fastfd/core/dtype.h"
#include "fastfd/core/status.h"
#include "fastfd/device/cuda_stream.h"

namespace fastfd::kernels::cuda {

enum class GemmOutput : std::uint8_t {
  kBFloat16,    ///< C = A W^T, rounded
  kFloat32,     ///< C = A W^T
  kAddFloat32,  ///< C += A W^T: a projection that ends in the residual stream
};

/// Device pointers; matrices and their rows are aligned to 16 bytes. A batch is as many products of
/// the same shape, such as those of attention heads, over the same rows.
struct GemmParams {
  std::int64_t max_rows = 0;                ///< the shape bucket: memory of A and C covers it
  const std::uint32_t* num_rows = nullptr;  ///< [1] device, at most max_rows: usually
                                            ///< &LaneControl::num_rows or num_samples
  std::int64_t n = 0;                       ///< output features, multiple of 8
  std::int64_t k = 0;                       ///< input features, multiple of 8
  const bf16* a = nullptr;                  ///< [max_rows, k], row stride lda
  std::int64_t lda = 0;
  const bf16* weights = nullptr;  ///< [num_batches, n, k] row-major, as in checkpoints
  void* c = nullptr;              ///< [max_rows, n] bf16 or float by `output`, row stride ldc
  std::int64_t ldc = 0;
  GemmOutput output = GemmOutput::kBFloat16;
  const float* bias = nullptr;  ///< [n], added before C is rounded; nullptr: none
  std::int64_t num_batches = 1;
  // From one product's matrix to the next one's, in elements, multiples of 8; weights lie together.
  std::int64_t batch_stride_a = 0;
  std::int64_t batch_stride_c = 0;
};

/// Writes rows 0 .. num_rows - 1 of C and no others. Graph-capturable. The bucket chooses the tile
/// (max_rows up to 16, up to 64, more); every tile sums over k in the same order, which depends on
/// n, k and num_batches only, so a row's bits depend neither on the rows beside it nor on the
/// bucket. kInvalidArgument: dimensions or alignment that are not as above.
Status launch_gemm(const GemmParams& params, device::CudaStream stream);

}  // namespace fastfd::kernels::cuda
