#pragma once

/// Where a model's tensors come from, by the names and shapes of its checkpoint: the architectures
/// say what they need and don't know whether a file or a random generator gives it.

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "fastfd/model/model.h"
#include "fastfd/model/safetensors.h"
#include "kernels/random_fill/op.h"

namespace fastfd::model {

/// What a tensor is for: how it is made up, and what is done to it as it is read.
enum class TensorKind : std::uint8_t {
  kMatrix,
  kNorm,              ///< multiplies; near 1
  kZeroCenteredNorm,  ///< near 0; 1 + w multiplies
  kAroundZero,        ///< a vector that is added
};

/// A tensor as the model needs it.
struct TensorShape {
  std::string name;
  std::vector<std::uint64_t> dims;  ///< [dim], [rows, cols] or [matrices, rows, cols]
  TensorKind kind = TensorKind::kMatrix;
};

/// Const functions may be called from any thread.
class TensorSource {
 public:
  virtual ~TensorSource() = default;

  /// Whether a checkpoint that names tensors in several ways has this one. False if all are made
  /// up.
  virtual bool contains(const std::string& name) const = 0;

  /// Bytes of files that the tensor takes. Throws ModelError if it can't be had in this shape.
  virtual std::uint64_t require(const TensorShape& tensor) const = 0;

  /// Elements first .. first + count - 1 in row-major order; `out` has room for `count`.
  virtual void read(const TensorShape& tensor, std::uint64_t first, std::uint64_t count,
                    bf16* out) const = 0;
  virtual void read(const TensorShape& tensor, std::uint64_t first, std::uint64_t count,
                    float* out) const = 0;

  /// What the files call the tensor's parts: its name alone, unless it is quantised.
  virtual std::vector<std::string> stored_names(const TensorShape& tensor) const {
    return {tensor.name};
  }

  /// The files have the matrix as FP8 in blocks with scales; read() dequantises it.
  virtual bool is_fp8(const TensorShape& /*matrix*/) const { return false; }
  /// Such a matrix bit for bit: `e4m3` [rows, cols], `scales` [ceil(rows/128), ceil(cols/128)].
  virtual void read_fp8(const TensorShape& matrix, std::uint8_t* e4m3, float* scales) const;

  /// A matrix that is made up: how, so that a GPU can do it where the matrix will be. `out` is the
  /// caller's to set.
  virtual std::optional<kernels::RandomFillParams> recipe(const TensorShape& /*matrix*/) const {
    return std::nullopt;
  }
};

/// The checkpoint of a folder; `stored`: as ModelSpec says. Throws ModelError.
Checkpoint open_checkpoint(const std::filesystem::path& model_dir, StoredQuantization stored);
/// The tensors of an open checkpoint.
std::unique_ptr<TensorSource> make_checkpoint_source(std::shared_ptr<const Checkpoint> checkpoint);

/// What spec.load says. Throws ModelError.
std::unique_ptr<TensorSource> open_tensor_source(const std::filesystem::path& model_dir,
                                                 const ModelSpec& spec);

}  // namespace fastfd::model
