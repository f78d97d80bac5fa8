#pragma once

#include <initializer_list>
#include <optional>
#include <vector>

#include "model/device_uploader.h"
#include "model/tensor_map.h"
#include "model/tensor_source.h"
#include "model/weight_reader.h"

namespace fastfd::model {

/// kv_b_proj of latent attention, head by head.
struct HeadWeights {
  const bf16* keys = nullptr;    ///< [num_heads, kv_rank, nope_dim]
  const bf16* values = nullptr;  ///< [num_heads, value_dim, kv_rank]
};

/// Puts a source's tensors into GPU memory, one after the other: what a file holds through one host
/// buffer, what is made up by the GPU itself. Throws ModelError or DeviceError. One thread.
class MatrixUploader {
 public:
  MatrixUploader(const TensorSource& source, LoadReport* report, DeviceUploader& uploader)
      : source_(source), reader_(source, report), uploader_(uploader) {}

  const float* vector(const TensorShape& tensor) {
    return uploader_.put(reader_.read_vector(tensor));
  }
  /// nullptr if there is none.
  const float* vector(const std::optional<TensorShape>& tensor) {
    return tensor ? vector(*tensor) : nullptr;
  }
  /// [channels, taps] of a convolution as [taps, channels].
  const float* by_tap(const TensorShape& tensor) {
    return uploader_.put(reader_.read_by_tap(tensor));
  }
  const bf16* matrix(const MatrixRef& matrix) {
    bf16* to = uploader_.reserve<bf16>(matrix.num_rows * matrix.num_cols);
    into(to, matrix);
    return to;
  }
  /// Vectors one behind the other; nullptr if there is none.
  const float* vectors(std::initializer_list<std::optional<TensorShape>> tensors);
  HeadWeights heads(const MatrixRef& kv_up, const LatentSpec& latent);
  /// Writes a matrix where there is room already (aligned to 16 bytes); returns the end.
  bf16* into(bf16* to, const MatrixRef& matrix) {
    return into(to, matrix, matrix.num_rows, matrix.num_cols);
  }
  /// The same as the upper left part of a matrix of zeros [rows, cols], whole rows of 16 bytes.
  bf16* into(bf16* to, const MatrixRef& matrix, std::uint64_t rows, std::uint64_t cols);

  /// Puts a matrix, padded with zeros to [rows, cols], multiples of 128, as e4m3 [rows, cols] and
  /// `scales` [rows / 128, cols / 128]: the checkpoint's own bits if it is FP8 there in this size,
  /// else quantised by the GPU. `staging`: GPU memory for the padded matrix in bf16, free again for
  /// what is put next.
  void into_fp8(const MatrixRef& matrix, std::uint64_t rows, std::uint64_t cols, std::uint8_t* e4m3,
                float* scales, bf16* staging);

 private:
  void put(const MatrixRef& matrix, bf16* to, std::uint64_t rows, std::uint64_t cols);
  void fill(kernels::RandomFillParams recipe, const MatrixRef& matrix, bf16* to,
            std::uint64_t cols);

  const TensorSource& source_;
  WeightReader reader_;
  DeviceUploader& uploader_;
  std::vector<bf16> host_;
  std::vector<std::uint8_t> host_e4m3_;
  std::vector<float> host_scales_;
};

}  // namespace fastfd::model
