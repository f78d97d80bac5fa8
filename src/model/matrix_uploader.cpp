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

bf16* MatrixUploader::into(bf16* to, const std::string& name, std::uint64_t rows,
                           std::uint64_t cols) {
  return put(reader_.open(name, {rows, cols}), to);
}

bf16* MatrixUploader::put(const TensorShape& matrix, bf16* to) {
  const std::uint64_t count = matrix.dims[0] * matrix.dims[1];
  if (auto recipe = source_.recipe(matrix)) {
    recipe->out = to;
    require(kernels::cuda::launch_random_fill(*recipe, uploader_.stream()));
  } else {
    host_.resize(count);
    source_.read(matrix, 0, count, host_.data());
    uploader_.copy(to, host_.data(), count);
  }
  return to + count;
}

void MatrixUploader::into_fp8(const std::string& name, std::uint64_t rows, std::uint64_t cols,
                              std::uint8_t* e4m3, float* scales, bf16* staging) {
  constexpr auto kBlock = static_cast<std::uint64_t>(kernels::kQuantizeBlock);
  const TensorShape matrix = reader_.open(name, {rows, cols});
  if (source_.is_fp8(matrix)) {
    host_e4m3_.resize(rows * cols);
    host_scales_.resize((rows / kBlock) * (cols / kBlock));
    source_.read_fp8(matrix, host_e4m3_.data(), host_scales_.data());
    uploader_.copy(e4m3, host_e4m3_.data(), host_e4m3_.size());
    uploader_.copy(scales, host_scales_.data(), host_scales_.size());
    return;
  }
  put(matrix, staging);
  require(kernels::cuda::launch_quantize({.rows = static_cast<std::int64_t>(rows),
                                          .cols = static_cast<std::int64_t>(cols),
                                          .values = staging,
                                          .e4m3 = e4m3,
                                          .scales = scales},
                                         uploader_.stream()));
}

}  // namespace fastfd::model
