#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "fastfd/model/model.h"
#include "model/tensor_map.h"
#include "model/tensor_source.h"

namespace fastfd::model {

/// Reads tensors into host memory and keeps the report of what it read. Not thread-safe; use one a
/// thread.
class WeightReader {
 public:
  WeightReader(const TensorSource& source, LoadReport* report) : source_(source), report_(report) {}

  /// All elements; of a zero-centred norm 1 + w.
  std::vector<float> read_vector(const TensorShape& tensor);
  /// Empty if there is none.
  std::vector<float> read_vector(const std::optional<TensorShape>& tensor);

  /// [channels, taps] of a convolution as [taps, channels].
  std::vector<float> read_by_tap(const TensorShape& tensor);

  /// A head's keys, transposed, and its values out of the opened kv_b_proj, which has the key rows
  /// and then the value rows of each head: [kv_rank, nope_dim] and [value_dim, kv_rank].
  void read_head(const MatrixRef& kv_up, const LatentSpec& latent, std::uint32_t head, bf16* keys,
                 bf16* values);

  /// `out` is resized to [num_rows, num_cols]; transposed, [num_cols, num_rows].
  void read_matrix(const MatrixRef& matrix, std::vector<bf16>& out);

  /// Packs the matrix as rows first_row .. of `packed`, a block of rows at a time, so that a large
  /// matrix is never held twice. It has no gaps and is not transposed.
  void pack(const MatrixRef& matrix, kernels::PackedWeights& packed, std::uint64_t first_row = 0);

  /// Notes that the matrix is used; throws ModelError if it can't be had.
  void open(const MatrixRef& matrix);

  /// The one row of a block that has no more.
  std::vector<float> read_row(const MatrixRef& matrix);

  /// Rows first .. first + count - 1 of an opened matrix, [count, num_cols]. It has no gaps and is
  /// not transposed.
  void read_rows(const MatrixRef& matrix, std::uint64_t first, std::uint64_t count, bf16* out);

 private:
  template <typename T>
  void read_scattered(const MatrixRef& matrix, T* out);
  void note(const TensorShape& tensor, std::uint64_t num_bytes);

  const TensorSource& source_;
  LoadReport* report_;
  std::vector<bf16> block_;  // scratch of pack() and read_head()
  std::vector<bf16> rows_;   // scratch of read_rows(): whole rows, of which some columns are wanted
};

}  // namespace fastfd::model
