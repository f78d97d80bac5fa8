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
  const TensorShape tensor = reader_.open(name, {rows, cols});
  if (auto recipe = source_.recipe(tensor)) {
    recipe->out = to;
    require(kernels::cuda::launch_random_fill(*recipe, uploader_.stream()));
  } else {
    host_.resize(rows * cols);
    source_.read(tensor, 0, host_.size(), host_.data());
    uploader_.copy(to, host_.data(), host_.size());
  }
  return to + rows * cols;
}

void MatrixUploader::quantize(const bf16* values, std::uint64_t rows, std::uint64_t cols,
                              std::uint8_t* e4m3, float* scales) {
  require(kernels::cuda::launch_quantize({.rows = static_cast<std::int64_t>(rows),
                                          .cols = static_cast<std::int64_t>(cols),
                                          .values = values,
                                          .e4m3 = e4m3,
                                          .scales = scales},
                                         uploader_.stream()));
}

}  // namespace fastfd::model
