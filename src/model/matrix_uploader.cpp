#include "model/matrix_uploader.h"

#include "kernels/quantize/op_cuda.h"
#include "kernels/random_fill/op_cuda.h"

namespace fastfd::model {
namespace {

void require(const Status& status) {
  if (!status) {
    throw device::DeviceError("making weights on the GPU: " + status.message());
  }
}

}  // namespace

bf16* MatrixUploader::into(bf16* to, const MatrixRef& matrix) {
  reader_.open(matrix);
  return put(matrix, to);
}

bf16* MatrixUploader::put(const MatrixRef& matrix, bf16* to) {
  const std::uint64_t count = matrix.num_rows * matrix.num_cols;
  const bool has_whole_rows = matrix.num_cols == matrix.tensor_cols();
  auto recipe = source_.recipe(matrix.tensor);
  if (recipe && has_whole_rows) {
    recipe->first = matrix.first_row * matrix.num_cols;
    recipe->count = count;
    recipe->out = to;
    require(kernels::cuda::launch_random_fill(*recipe, uploader_.stream()));
  } else {
    host_.resize(count);
    reader_.read_rows(matrix, 0, matrix.num_rows, host_.data());
    uploader_.copy(to, host_.data(), count);
  }
  return to + count;
}

void MatrixUploader::into_fp8(const MatrixRef& matrix, std::uint8_t* e4m3, float* scales,
                              bf16* staging) {
  constexpr auto kBlock = static_cast<std::uint64_t>(kernels::kQuantizeBlock);
  reader_.open(matrix);
  if (matrix.is_whole() && source_.is_fp8(matrix.tensor)) {
    host_e4m3_.resize(matrix.num_rows * matrix.num_cols);
    host_scales_.resize((matrix.num_rows / kBlock) * (matrix.num_cols / kBlock));
    source_.read_fp8(matrix.tensor, host_e4m3_.data(), host_scales_.data());
    uploader_.copy(e4m3, host_e4m3_.data(), host_e4m3_.size());
    uploader_.copy(scales, host_scales_.data(), host_scales_.size());
    return;
  }
  put(matrix, staging);
  require(kernels::cuda::launch_quantize({.rows = static_cast<std::int64_t>(matrix.num_rows),
                                          .cols = static_cast<std::int64_t>(matrix.num_cols),
                                          .values = staging,
                                          .e4m3 = e4m3,
                                          .scales = scales},
                                         uploader_.stream()));
}

}  // namespace fastfd::model
