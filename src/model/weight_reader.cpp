#include "model/weight_reader.h"

#include <algorithm>

namespace fastfd::model {

TensorShape WeightReader::open(const std::string& name, std::initializer_list<std::uint64_t> dims) {
  TensorShape tensor{name, dims};
  const std::uint64_t num_bytes = source_.require(tensor);
  if (report_ != nullptr) {
    report_->tensors.push_back(name);
    if (source_.is_fp8(tensor)) {
      report_->tensors.push_back(name + "_scale_inv");
    }
    report_->bytes_read += num_bytes;
  }
  return tensor;
}

std::vector<float> WeightReader::read_vector(const std::string& name, std::uint64_t dim) {
  const TensorShape tensor = open(name, {dim});
  std::vector<float> out(dim);
  source_.read(tensor, 0, dim, out.data());
  return out;
}

void WeightReader::read_matrix(const std::string& name, std::uint64_t rows, std::uint64_t cols,
                               std::vector<bf16>& out) {
  const TensorShape tensor = open(name, {rows, cols});
  out.resize(rows * cols);
  source_.read(tensor, 0, rows * cols, out.data());
}

void WeightReader::pack(const std::string& name, std::uint64_t rows, std::uint64_t cols,
                        kernels::PackedWeights& packed, std::uint64_t first_row) {
  constexpr std::uint64_t kBlockElements = std::uint64_t{1} << 20;
  const TensorShape tensor = open(name, {rows, cols});
  // Whole panels, so that a panel of `packed` is written in one go.
  constexpr auto kPanel = static_cast<std::uint64_t>(kernels::kPanelRows);
  const std::uint64_t block_rows =
      std::max<std::uint64_t>(kBlockElements / std::max<std::uint64_t>(cols, 1) / kPanel, 1) *
      kPanel;
  for (std::uint64_t row = 0; row < rows; row += block_rows) {
    const std::uint64_t now = std::min(block_rows, rows - row);
    block_.resize(now * cols);
    source_.read(tensor, row * cols, now * cols, block_.data());
    packed.pack_rows(static_cast<std::int64_t>(first_row + row), static_cast<std::int64_t>(now),
                     block_.data());
  }
}

}  // namespace fastfd::model
