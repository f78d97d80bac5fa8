#include "model/weight_reader.h"

#include <algorithm>

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
    report_->tensors.push_back(tensor.name);
    if (source_.is_fp8(tensor)) {
      report_->tensors.push_back(tensor.name + "_scale_inv");
    }
    report_->bytes_read += num_bytes;
  }
}

void WeightReader::open(const MatrixRef& matrix) {
  const std::uint64_t num_bytes = source_.require(matrix.tensor);
  const std::uint64_t all = num_elements(matrix.tensor);
  const std::uint64_t used = matrix.num_rows * matrix.num_cols;
  note(matrix.tensor, used == all ? num_bytes : num_bytes / all * used);
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

void WeightReader::read_rows(const MatrixRef& matrix, std::uint64_t first, std::uint64_t count,
                             bf16* out) {
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

void WeightReader::read_matrix(const MatrixRef& matrix, std::vector<bf16>& out) {
  open(matrix);
  out.resize(matrix.num_rows * matrix.num_cols);
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
