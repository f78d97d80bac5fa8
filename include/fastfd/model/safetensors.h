#pragma once

/// Reading of safetensors checkpoints: https://github.com/huggingface/safetensors#format
/// A file is 8 bytes of little-endian header length, a JSON header that names type, shape and byte
/// range of each tensor, and the tensors' bytes, without holes. A sharded checkpoint adds
/// model.safetensors.index.json, whose `weight_map` says which file holds which tensor.

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "fastfd/core/dtype.h"

namespace fastfd::model {

/// Element types that the format knows. Only kF32, kF16, kBF16 and, in blocks with scales, kF8E4M3
/// and MXFP4 (packed into kU8) can be read as weights.
enum class StoredDType : std::uint8_t {
  kBool,
  kU8,
  kI8,
  kF8E4M3,
  kF8E5M2,
  kF8E8M0,
  kI16,
  kU16,
  kF16,
  kBF16,
  kI32,
  kU32,
  kF32,
  kI64,
  kU64,
  kF64,
};

/// "BF16", as in the header.
const char* to_string(StoredDType dtype);
std::size_t dtype_bytes(StoredDType dtype);

/// Where a tensor lies. Validated: `num_bytes` is what type and shape need, the range lies in the
/// file and overlaps no other.
struct TensorInfo {
  std::string name;
  StoredDType dtype = StoredDType::kF32;
  std::vector<std::uint64_t> shape;  ///< empty: a scalar
  std::uint64_t num_elements = 0;
  std::uint64_t file_offset = 0;  ///< of the first byte, from the beginning of the file; any value
  std::uint64_t num_bytes = 0;
  std::uint32_t file_index = 0;  ///< into Checkpoint::files()
  /// Of a kF8E4M3 matrix, after Checkpoint::use_block_scales; the checkpoint's.
  const TensorInfo* block_scales = nullptr;
  /// Of a tensor that Checkpoint::use_mxfp4 made of packed blocks, whose type, bytes and place it
  /// has: name and scales of those. num_elements and shape are of what they stand for.
  std::string stored_name;
  const TensorInfo* mxfp4_scales = nullptr;

  const TensorInfo* scales() const { return block_scales != nullptr ? block_scales : mxfp4_scales; }
};

/// What the two parts of an MXFP4 tensor are called, behind its name.
inline constexpr std::string_view kMxfp4Blocks = "_blocks";
inline constexpr std::string_view kMxfp4Scales = "_scales";

/// "[4, 8]"
std::string shape_to_string(std::span<const std::uint64_t> shape);

class CheckpointFile;

/// The headers of all files of a checkpoint, and access to the data.
///
/// Opening reads headers only. A read maps no more than the pages of the range asked for, converts
/// into the caller's buffer and unmaps: what was not asked for never becomes resident, and nothing
/// stays so. Const functions may be called from any thread.
class Checkpoint {
 public:
  /// Opens model.safetensors or what model.safetensors.index.json names. Throws ModelError naming
  /// file and tensor for anything that breaks the format: truncation, a header that is too long or
  /// no JSON, unknown types, duplicate names, ranges that overlap, leave holes, lie outside the
  /// file or don't match type and shape; and for an index that disagrees with its shards.
  static Checkpoint open(const std::filesystem::path& model_dir);
  /// One file, whatever its name.
  static Checkpoint open_file(const std::filesystem::path& file);

  Checkpoint(Checkpoint&&) noexcept;
  Checkpoint& operator=(Checkpoint&&) noexcept;
  ~Checkpoint();

  /// By name, ascending.
  const std::map<std::string, TensorInfo>& tensors() const { return tensors_; }
  const std::vector<std::filesystem::path>& files() const { return files_; }
  bool contains(const std::string& name) const { return tensors_.contains(name); }

  /// The checkpoint is block FP8 as DeepSeek-V3's: every kF8E4M3 tensor is a matrix W with float
  /// scales in W_scale_inv, one a block of 128 x 128 (the last of a row or column may be smaller),
  /// and value = scale * e4m3. Everything else is not quantised: the files decide, whatever lists
  /// of modules config.json has. Throws ModelError for scales that are missing, have another shape,
  /// or belong to no kF8E4M3 matrix.
  void use_block_scales();

  /// The checkpoint is MXFP4 as gpt-oss's (OCP Microscaling Formats 1.0, E2M1 elements and E8M0
  /// scales): W_blocks [.., rows, groups, 16] has two elements a byte, the lower half first, and
  /// W_scales [.., rows, groups] a biased exponent of 2 for every 32; they become the tensor W
  /// [.., rows, 32 groups]. Everything else is not quantised: the files decide, whatever lists of
  /// modules config.json has. Throws ModelError for blocks and scales without each other or of
  /// other types or shapes, and for a W that is there as well.
  void use_mxfp4();

  /// The tensor, which must exist, have exactly this shape and a type that can be read. Throws
  /// ModelError.
  const TensorInfo& require(const std::string& name, std::span<const std::uint64_t> shape) const;

  /// Elements first .. first + count - 1 in row-major order; `out` has room for `count`. float32,
  /// float16 and products of FP8 values with their scales are rounded to nearest even; MXFP4 is
  /// exact. Throws ModelError if the file became shorter since it was opened or can't be mapped, or
  /// if quantised values or scales are NaN or infinite; the range must lie in the tensor.
  void read(const TensorInfo& tensor, std::uint64_t first, std::uint64_t count, bf16* out) const;
  void read(const TensorInfo& tensor, std::uint64_t first, std::uint64_t count, float* out) const;

  /// A matrix with block_scales, bit for bit; scales are widened to float. `e4m3` has room for
  /// num_elements, `scales` for block_scales->num_elements. Throws as read() does.
  void read_fp8(const TensorInfo& tensor, std::uint8_t* e4m3, float* scales) const;

  /// Up to 3 x 64 bytes of the tensor: its beginning, middle and end. Read without being mapped.
  std::string sample(const TensorInfo& tensor) const;

 private:
  Checkpoint();
  void add_file(const std::filesystem::path& file);
  std::string describe(const TensorInfo& tensor) const;  // "file: tensor 'name'"
  template <typename T>
  void read_as(const TensorInfo& tensor, std::uint64_t first, std::uint64_t count, T* out) const;
  template <typename Body>
  void map_parts(const TensorInfo& tensor, std::uint64_t first, std::uint64_t count,
                 const Body& body) const;
  void read_stored(const TensorInfo& tensor, std::uint64_t first, std::uint64_t count,
                   std::byte* out) const;
  template <typename T>
  void dequantize(const TensorInfo& tensor, std::uint64_t first, std::uint64_t count, T* out) const;
  template <typename T>
  void unpack_mxfp4(const TensorInfo& tensor, std::uint64_t first, std::uint64_t count,
                    T* out) const;
  void read_bits(const TensorInfo& tensor, std::uint64_t first, std::uint64_t count,
                 std::uint8_t* e4m3) const;
  void read_scales(const TensorInfo& tensor, std::uint64_t first_row, std::uint64_t num_rows,
                   float* scales) const;

  std::vector<std::filesystem::path> files_;
  std::vector<std::unique_ptr<CheckpointFile>> handles_;  // [files_.size()]
  std::map<std::string, TensorInfo> tensors_;
};

}  // namespace fastfd::model
