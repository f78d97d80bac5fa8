#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <nlohmann/json.hpp>
#include <set>
#include <system_error>
#include <type_traits>

#include "fastfd/core/check.h"
#include "fastfd/core/model_files.h"
#include "fastfd/model/model.h"
#include "fastfd/model/safetensors.h"
#include "model/checkpoint_file.h"
#include "model/hf_config.h"
#include "model/safetensors_header.h"

namespace fastfd::model {
namespace {

constexpr const char* kSingleFile = "model.safetensors";
constexpr const char* kIndexFile = "model.safetensors.index.json";
/// Most bytes of a file mapped by one read at a time: bounds what is resident twice.
constexpr std::uint64_t kMapBytes = std::uint64_t{8} << 20;

/// IEEE half to float, exact; subnormals included.
float half_to_float(std::uint16_t half) {
  const std::uint32_t sign = (half & 0x8000U) << 16;
  const std::uint32_t exponent = (half >> 10) & 0x1fU;
  const std::uint32_t mantissa = half & 0x3ffU;
  if (exponent == 0) {
    const float magnitude = static_cast<float>(mantissa) * 0x1p-24F;
    return sign != 0 ? -magnitude : magnitude;
  }
  const std::uint32_t float_exponent = exponent == 31 ? 255 : exponent + 112;
  return std::bit_cast<float>(sign | (float_exponent << 23) | (mantissa << 13));
}

/// A value from bytes that need not be aligned.
template <typename T>
T load_unaligned(const std::byte* from) {
  T value;
  std::memcpy(&value, from, sizeof(T));
  return value;
}

void store(float value, float& out) { out = value; }
void store(float value, bf16& out) { out = bf16::from_float(value); }

/// Converts `count` stored elements, which may lie at any address.
template <typename T>
void convert(StoredDType dtype, const std::byte* from, std::uint64_t count, T* out) {
  switch (dtype) {
    case StoredDType::kBF16:
      if constexpr (std::is_same_v<T, bf16>) {
        std::memcpy(out, from, count * sizeof(bf16));
      } else {
        for (std::uint64_t i = 0; i < count; ++i) {
          out[i] = load_unaligned<bf16>(from + 2 * i).to_float();
        }
      }
      return;
    case StoredDType::kF16:
      for (std::uint64_t i = 0; i < count; ++i) {
        store(half_to_float(load_unaligned<std::uint16_t>(from + 2 * i)), out[i]);
      }
      return;
    case StoredDType::kF32:
      for (std::uint64_t i = 0; i < count; ++i) {
        store(load_unaligned<float>(from + 4 * i), out[i]);
      }
      return;
    default:
      check(false, "a tensor type that require() refuses");
  }
}

bool is_plain(StoredDType dtype) {
  return dtype == StoredDType::kBF16 || dtype == StoredDType::kF16 || dtype == StoredDType::kF32;
}

}  // namespace

Checkpoint::Checkpoint() = default;
Checkpoint::Checkpoint(Checkpoint&&) noexcept = default;
Checkpoint& Checkpoint::operator=(Checkpoint&&) noexcept = default;
Checkpoint::~Checkpoint() = default;

std::string Checkpoint::sample(const TensorInfo& tensor) const {
  constexpr std::uint64_t kSampleBytes = 64;
  const std::uint64_t length = std::min(tensor.num_bytes, kSampleBytes);
  const std::uint64_t last = tensor.num_bytes - length;
  std::string bytes(3 * length, '\0');
  std::uint64_t at = 0;
  for (const std::uint64_t offset : {std::uint64_t{0}, last / 2, last}) {
    handles_[tensor.file_index]->read_at(tensor.file_offset + offset, &bytes[at], length);
    at += length;
  }
  return bytes;
}

void Checkpoint::add_file(const std::filesystem::path& file) {
  auto handle = std::make_unique<CheckpointFile>(file);
  for (auto& tensor : parse_safetensors_header(handle->read_header(), handle->num_bytes(), file)) {
    tensor.file_index = static_cast<std::uint32_t>(files_.size());
    const std::string name = tensor.name;
    const auto [at, is_new] = tensors_.emplace(name, std::move(tensor));
    if (!is_new) {
      throw ModelError(fmt::format("{}: tensor {} is a duplicate: {} holds it as well; keep one",
                                   file.string(), quote_name(name),
                                   files_[at->second.file_index].string()));
    }
  }
  files_.push_back(file);
  handles_.push_back(std::move(handle));
}

Checkpoint Checkpoint::open_file(const std::filesystem::path& file) {
  Checkpoint checkpoint;
  checkpoint.add_file(file);
  return checkpoint;
}

namespace {

/// Tensor name -> file name, from the index of a sharded checkpoint.
std::map<std::string, std::string> read_weight_map(const std::filesystem::path& index) {
  const HfConfig config = HfConfig::read_file(index);
  const auto map = config.json().find("weight_map");
  if (map == config.json().end() || !map->is_object() || map->empty()) {
    config.fail("weight_map", "is no object that maps tensors to files", "fetch the index again");
  }
  std::map<std::string, std::string> result;
  for (const auto& [tensor, file] : map->items()) {
    const auto* name = file.get_ptr<const std::string*>();
    // A plain name: an index must not lead out of its folder.
    if (name == nullptr || name->empty() ||
        name->find_first_of(std::string("/\\\0", 3)) != std::string::npos || *name == "." ||
        *name == "..") {
      config.fail("weight_map." + quote_name(tensor), "does not name a file of this folder",
                  "fetch the index again");
    }
    result.emplace(tensor, *name);
  }
  return result;
}

}  // namespace

Checkpoint Checkpoint::open(const std::filesystem::path& model_dir) {
  std::error_code error;
  if (has_entry(model_dir / kSingleFile)) {
    return open_file(model_dir / kSingleFile);
  }
  const auto index = model_dir / kIndexFile;
  if (!has_entry(index)) {
    throw ModelError(
        fmt::format("{}: holds neither {} nor {}; only safetensors checkpoints can be "
                    "served, convert others with transformers' save_pretrained",
                    model_dir.string(), kSingleFile, kIndexFile));
  }
  const auto weight_map = read_weight_map(index);
  std::set<std::string> shards;
  for (const auto& [tensor, shard] : weight_map) {
    if (!std::filesystem::exists(model_dir / shard, error)) {
      throw ModelError(fmt::format("{}: tensor {} is said to be in {}, which is missing; fetch it",
                                   index.string(), quote_name(tensor), quote_name(shard)));
    }
    shards.insert(shard);
  }
  Checkpoint checkpoint;
  for (const auto& shard : shards) {
    checkpoint.add_file(model_dir / shard);
  }
  for (const auto& [tensor, shard] : weight_map) {
    const auto at = checkpoint.tensors_.find(tensor);
    if (at == checkpoint.tensors_.end() ||
        checkpoint.files_[at->second.file_index].filename() != shard) {
      throw ModelError(
          fmt::format("{}: tensor {} is said to be in {}, which does not hold it; "
                      "fetch index and shards of the same revision",
                      index.string(), quote_name(tensor), quote_name(shard)));
    }
  }
  return checkpoint;
}

const TensorInfo& Checkpoint::require(const std::string& name,
                                      std::span<const std::uint64_t> shape) const {
  const auto at = tensors_.find(name);
  if (at == tensors_.end()) {
    throw ModelError(
        fmt::format("{}: tensor {} is missing; fetch the whole checkpoint, or check "
                    "that config.json belongs to it",
                    files_[0].parent_path().string(), quote_name(name)));
  }
  const TensorInfo& tensor = at->second;
  if (!std::equal(shape.begin(), shape.end(), tensor.shape.begin(), tensor.shape.end())) {
    throw ModelError(fmt::format("{} has shape {}, config.json needs {}; use files of one model",
                                 describe(tensor), shape_to_string(tensor.shape),
                                 shape_to_string(shape)));
  }
  if (!is_plain(tensor.dtype) && tensor.scales() == nullptr) {
    throw ModelError(fmt::format(
        "{} has dtype {}, which can't be served; use a checkpoint in BF16, F16 or F32, or in "
        "F8_E4M3 with a quantization_config of quant_method fp8 in config.json, or in MXFP4 with "
        "one of mxfp4",
        describe(tensor), to_string(tensor.dtype)));
  }
  return tensor;
}

template <typename Body>
void Checkpoint::map_parts(const TensorInfo& tensor, std::uint64_t first, std::uint64_t count,
                           const Body& body) const {
  const std::uint64_t element_bytes = dtype_bytes(tensor.dtype);
  const std::uint64_t part = kMapBytes / element_bytes;
  for (std::uint64_t done = 0; done < count;) {
    const std::uint64_t now = std::min(part, count - done);
    handles_[tensor.file_index]->with_mapped(
        tensor.file_offset + (first + done) * element_bytes, now * element_bytes,
        [&](const std::byte* bytes) { body(bytes, done, now); });
    done += now;
  }
}

void Checkpoint::read_stored(const TensorInfo& tensor, std::uint64_t first, std::uint64_t count,
                             std::byte* out) const {
  const std::uint64_t element_bytes = dtype_bytes(tensor.dtype);
  map_parts(tensor, first, count,
            [&](const std::byte* bytes, std::uint64_t done, std::uint64_t now) {
              std::memcpy(out + done * element_bytes, bytes, now * element_bytes);
            });
}

template <typename T>
void Checkpoint::read_as(const TensorInfo& tensor, std::uint64_t first, std::uint64_t count,
                         T* out) const {
  check(first <= tensor.num_elements && count <= tensor.num_elements - first,
        "a read beyond the end of a tensor");
  if (tensor.block_scales != nullptr) {
    dequantize(tensor, first, count, out);
    return;
  }
  if (tensor.mxfp4_scales != nullptr) {
    unpack_mxfp4(tensor, first, count, out);
    return;
  }
  check(is_plain(tensor.dtype), "a tensor type that require() refuses");
  map_parts(tensor, first, count,
            [&](const std::byte* bytes, std::uint64_t done, std::uint64_t now) {
              convert(tensor.dtype, bytes, now, out + done);
            });
}

void Checkpoint::read(const TensorInfo& tensor, std::uint64_t first, std::uint64_t count,
                      bf16* out) const {
  read_as(tensor, first, count, out);
}

void Checkpoint::read(const TensorInfo& tensor, std::uint64_t first, std::uint64_t count,
                      float* out) const {
  read_as(tensor, first, count, out);
}

}  // namespace fastfd::model
