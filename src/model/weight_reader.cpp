#include "model/weight_reader.h"

#include <algorithm>
#include <utility>

#include "fastfd/core/check.h"

namespace fastfd::model {
namespace {

constexpr std::uint64_t kBlockElements = std::uint64_t{1} << 20;

std::uint64_t num_elements(const TensorShape& tensor) {
  std::uint64_t count = 1;
  for (const std::uint64_t dim : tensor.dims) {
    count *= dim;
  }
  return count;
}

}  // namespace

void WeightReader::note(const TensorShape& tensor, std::uint64_t num_bytes) {
  if (report_ != nullptr) {
    for (std::string& name : source_.stored_names(tensor)) {
      report_->tensors.push_back(std::move(name));
    }
    report_->bytes_read += num_bytes;
  }
}

void WeightReader::open(const MatrixRef& matrix) {
  const std::uint64_t num_bytes = source_.require(matrix.tensor);
  const std::uint64_t all = num_elements(matrix.tensor);
  const std::uint64_t used = matrix.num_rows * matrix.num_cols;
  // Several elements may share a byte; a product would be too large for 64 bits.
  note(matrix.tensor, num_bytes / all * used + num_bytes % all * used / all);
}

std::vector<float> WeightReader::read_vector(const TensorShape& tensor) {
  note(tensor, source_.require(tensor));
  std::vector<float> out(num_elements(tensor));
  source_.read(tensor, 0, out.size(), out.data());
  for (std::size_t i = 0; tensor.kind == TensorKind::kZeroCenteredNorm && i < out.size(); ++i) {
    out[i] += 1.0F;
  }
  return out;
}

std::vector<float> WeightReader::read_vector(const std::optional<TensorShape>& tensor) {
  return tensor ? read_vector(*tensor) : std::vector<float>{};
}

std::vector<float> WeightReader::read_row(const MatrixRef& matrix) {
  check(matrix.num_rows == 1, "a block of several rows");
  open(matrix);
  std::vector<float> out(matrix.num_cols);
  read_scattered(matrix, out.data());
  return out;
}

/// Whole rows of the file, a part at a time, of which some elements are wanted.
template <typename T>
void WeightReader::read_scattered(const MatrixRef& matrix, T* out) {
  const std::uint64_t width = matrix.tensor_cols();
  const std::uint64_t most = std::max<std::uint64_t>(kBlockElements / (width * matrix.row_step), 1);
  std::vector<T> rows;
  for (std::uint64_t done = 0; done < matrix.num_rows; done += most) {
    const std::uint64_t now = std::min(most, matrix.num_rows - done);
    const std::uint64_t num_stored = (now - 1) * matrix.row_step + 1;
    rows.resize(num_stored * width);
    source_.read(matrix.tensor, (matrix.first_row + done * matrix.row_step) * width, rows.size(),
                 rows.data());
    for (std::uint64_t col = 0; col < matrix.num_cols; ++col) {
      const T* from = rows.data() + matrix.first_col + col * matrix.col_step;
      T* to = matrix.is_transposed ? out + col * matrix.num_rows + done
                                   : out + done * matrix.num_cols + col;
      const std::uint64_t to_step = matrix.is_transposed ? 1 : matrix.num_cols;
      for (std::uint64_t row = 0; row < now; ++row) {
        to[row * to_step] = from[row * matrix.row_step * width];
      }
    }
  }
}

void WeightReader::read_rows(const MatrixRef& matrix, std::uint64_t first, std::uint64_t count,
                             bf16* out) {
  check(!matrix.has_gaps() && !matrix.is_transposed, "rows of a matrix that lies scattered");
  const std::uint64_t width = matrix.tensor_cols();
  const std::uint64_t first_row = matrix.first_row + first;
  if (matrix.num_cols == width) {
    source_.read(matrix.tensor, first_row * width, count * width, out);
    return;
  }
  const std::uint64_t most = std::max<std::uint64_t>(kBlockElements / width, 1);
  for (std::uint64_t done = 0; done < count; done += most) {
    const std::uint64_t now = std::min(most, count - done);
    rows_.resize(now * width);
    source_.read(matrix.tensor, (first_row + done) * width, now * width, rows_.data());
    for (std::uint64_t row = 0; row < now; ++row) {
      std::copy_n(rows_.data() + row * width + matrix.first_col, matrix.num_cols,
                  out + (done + row) * matrix.num_cols);
    }
  }
}

std::vector<float> WeightReader::read_by_tap(const TensorShape& tensor) {
  const std::vector<float> by_channel = read_vector(tensor);
  const std::size_t num_taps = tensor.dims.back();
  const std::size_t num_channels = by_channel.size() / num_taps;
  std::vector<float> by_tap(by_channel.size());
  for (std::size_t i = 0; i < by_channel.size(); ++i) {
    by_tap[i % num_taps * num_channels + i / num_taps] = by_channel[i];
  }
  return by_tap;
}

void WeightReader::read_head(const MatrixRef& kv_up, const LatentSpec& latent, std::uint32_t head,
                             bf16* keys, bf16* values) {
  const std::uint64_t rank = latent.kv_rank;
  const std::uint64_t nope = latent.nope_dim;
  const std::uint64_t first_row = head * (nope + latent.value_dim);
  block_.resize(nope * rank);
  read_rows(kv_up, first_row, nope, block_.data());
  for (std::uint64_t row = 0; row < nope; ++row) {
    for (std::uint64_t col = 0; col < rank; ++col) {
      keys[col * nope + row] = block_[row * rank + col];
    }
  }
  read_rows(kv_up, first_row + nope, latent.value_dim, values);
}

void WeightReader::read_matrix(const MatrixRef& matrix, std::vector<bf16>& out) {
  open(matrix);
  out.resize(matrix.num_rows * matrix.num_cols);
  if (matrix.has_gaps() || matrix.is_transposed) {
    read_scattered(matrix, out.data());
    return;
  }
  read_rows(matrix, 0, matrix.num_rows, out.data());
}

void WeightReader::pack(const MatrixRef& matrix, kernels::PackedWeights& packed,
                        std::uint64_t first_row) {
  open(matrix);
  // Whole panels, so that a panel of `packed` is written in one go.
  constexpr auto kPanel = static_cast<std::uint64_t>(kernels::kPanelRows);
  const std::uint64_t cols = std::max<std::uint64_t>(matrix.num_cols, 1);
  const std::uint64_t block_rows =
      std::max<std::uint64_t>(kBlockElements / cols / kPanel, 1) * kPanel;
  for (std::uint64_t row = 0; row < matrix.num_rows; row += block_rows) {
    const std::uint64_t now = std::min(block_rows, matrix.num_rows - row);
    block_.resize(now * matrix.num_cols);
    read_rows(matrix, row, now, block_.data());
    packed.pack_rows(static_cast<std::int64_t>(first_row + row), static_cast<std::int64_t>(now),
                     block_.data());
  }
}

}  // namespace fastfd::model
