#include "model/matrix_uploader.h"

#include <algorithm>
#include <utility>

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

const float* MatrixUploader::vectors(std::initializer_list<std::optional<TensorShape>> tensors) {
  std::vector<float> values;
  for (const auto& tensor : tensors) {
    const auto part = reader_.read_vector(tensor);
    values.insert(values.end(), part.begin(), part.end());
  }
  return values.empty() ? nullptr : uploader_.put(values);
}

HeadWeights MatrixUploader::heads(const MatrixRef& kv_up, const LatentSpec& latent) {
  const std::size_t num_keys = std::size_t{latent.kv_rank} * latent.nope_dim;
  const std::size_t num_values = std::size_t{latent.value_dim} * latent.kv_rank;
  bf16* keys = uploader_.reserve<bf16>(latent.num_heads * num_keys);
  bf16* values = uploader_.reserve<bf16>(latent.num_heads * num_values);
  host_.resize(num_keys + num_values);
  reader_.open(kv_up);
  for (std::uint32_t head = 0; head < latent.num_heads; ++head) {
    reader_.read_head(kv_up, latent, head, host_.data(), host_.data() + num_keys);
    uploader_.copy(keys + head * num_keys, host_.data(), num_keys);
    uploader_.copy(values + head * num_values, host_.data() + num_keys, num_values);
  }
  return {keys, values};
}

bf16* MatrixUploader::into(bf16* to, const MatrixRef& matrix, std::uint64_t rows,
                           std::uint64_t cols) {
  reader_.open(matrix);
  put(matrix, to, rows, cols);
  return to + rows * cols;
}

void MatrixUploader::put(const MatrixRef& matrix, bf16* to, std::uint64_t rows,
                         std::uint64_t cols) {
  const bool is_padded = rows != matrix.num_rows || cols != matrix.num_cols;
  if (auto recipe = source_.recipe(matrix.tensor)) {
    if (is_padded) {
      require(device::fill_async(to, 0, rows * cols * sizeof(bf16), uploader_.stream()));
    }
    fill(*recipe, matrix, to, cols);
    return;
  }
  host_.resize(matrix.num_rows * matrix.num_cols);
  reader_.read_rows(matrix, 0, matrix.num_rows, host_.data());
  if (is_padded) {
    std::vector<bf16> padded(rows * cols, bf16{0});
    for (std::uint64_t row = 0; row < matrix.num_rows; ++row) {
      std::copy_n(host_.data() + row * matrix.num_cols, matrix.num_cols,
                  padded.data() + row * cols);
    }
    host_ = std::move(padded);
  }
  uploader_.copy(to, host_.data(), host_.size());
}

/// `cols`: from row to row at `to`.
void MatrixUploader::fill(kernels::RandomFillParams recipe, const MatrixRef& matrix, bf16* to,
                          std::uint64_t cols) {
  const std::uint64_t width = matrix.tensor_cols();
  const bool at_once = matrix.num_cols == width && matrix.num_cols == cols;
  const std::uint64_t step = at_once ? matrix.num_rows : 1;
  for (std::uint64_t row = 0; row < matrix.num_rows; row += step) {
    recipe.first = (matrix.first_row + row) * width + matrix.first_col;
    recipe.count = step * matrix.num_cols;
    recipe.out = to + row * cols;
    require(kernels::cuda::launch_random_fill(recipe, uploader_.stream()));
  }
}

void MatrixUploader::into_fp8(const MatrixRef& matrix, std::uint64_t rows, std::uint64_t cols,
                              std::uint8_t* e4m3, float* scales, bf16* staging) {
  constexpr auto kBlock = static_cast<std::uint64_t>(kernels::kQuantizeBlock);
  reader_.open(matrix);
  const bool is_whole = matrix.is_whole() && rows == matrix.num_rows && cols == matrix.num_cols;
  if (is_whole && source_.is_fp8(matrix.tensor)) {
    host_e4m3_.resize(rows * cols);
    host_scales_.resize((rows / kBlock) * (cols / kBlock));
    source_.read_fp8(matrix.tensor, host_e4m3_.data(), host_scales_.data());
    uploader_.copy(e4m3, host_e4m3_.data(), host_e4m3_.size());
    uploader_.copy(scales, host_scales_.data(), host_scales_.size());
    return;
  }
  put(matrix, staging, rows, cols);
  require(kernels::cuda::launch_quantize({.rows = static_cast<std::int64_t>(rows),
                                          .cols = static_cast<std::int64_t>(cols),
                                          .values = staging,
                                          .e4m3 = e4m3,
                                          .scales = scales},
                                         uploader_.stream()));
}

}  // namespace fastfd::model
