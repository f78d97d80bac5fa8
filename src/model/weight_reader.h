#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "fastfd/model/model.h"
#include "model/tensor_source.h"

namespace fastfd::model {

/// Reads named tensors of expected shapes into host memory and keeps the report of what it read.
/// Not thread-safe; use one a thread.
class WeightReader {
 public:
  WeightReader(const TensorSource& source, LoadReport* report) : source_(source), report_(report) {}

  std::vector<float> read_vector(const std::string& name, std::uint64_t dim);

  /// `out` is resized to rows * cols.
  void read_matrix(const std::string& name, std::uint64_t rows, std::uint64_t cols,
                   std::vector<bf16>& out);

  /// Packs the tensor [rows, cols] as rows first_row .. first_row + rows - 1 of `packed`, a block
  /// of rows at a time, so that a large matrix is never held twice.
  void pack(const std::string& name, std::uint64_t rows, std::uint64_t cols,
            kernels::PackedWeights& packed, std::uint64_t first_row = 0);

  /// Notes that the tensor is used; throws ModelError if it can't be had.
  TensorShape open(const std::string& name, std::initializer_list<std::uint64_t> dims);

 private:
  const TensorSource& source_;
  LoadReport* report_;
  std::vector<bf16> block_;  // scratch of pack()
};

}  // namespace fastfd::model
