#pragma once

#include <string>
#include <vector>

#include "model/device_uploader.h"
#include "model/tensor_source.h"
#include "model/weight_reader.h"

namespace fastfd::model {

/// Puts a source's tensors into GPU memory, one after the other: what a file holds through one host
/// buffer, what is made up by the GPU itself. Throws ModelError or DeviceError. One thread.
class MatrixUploader {
 public:
  MatrixUploader(const TensorSource& source, LoadReport* report, DeviceUploader& uploader)
      : source_(source), reader_(source, report), uploader_(uploader) {}

  const float* vector(const std::string& name, std::uint64_t dim) {
    return uploader_.put(reader_.read_vector(name, dim));
  }
  const bf16* matrix(const std::string& name, std::uint64_t rows, std::uint64_t cols) {
    bf16* to = uploader_.reserve<bf16>(rows * cols);
    into(to, name, rows, cols);
    return to;
  }
  /// Writes a matrix where there is room already (aligned to 16 bytes); returns the end.
  bf16* into(bf16* to, const std::string& name, std::uint64_t rows, std::uint64_t cols);

  /// [rows, cols] in GPU memory, both multiples of 128, becomes e4m3 with a scale a block of
  /// 128 x 128. `values` may be overwritten by what is put there next.
  void quantize(const bf16* values, std::uint64_t rows, std::uint64_t cols, std::uint8_t* e4m3,
                float* scales);

 private:
  const TensorSource& source_;
  WeightReader reader_;
  DeviceUploader& uploader_;
  std::vector<bf16> host_;
};

}  // namespace fastfd::model
