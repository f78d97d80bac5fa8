// MXFP4 of a checkpoint: which tensors it is, and unpacking them.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <string_view>
#include <type_traits>
#include <vector>

#include "fastfd/model/model.h"
#include "fastfd/model/safetensors.h"
#include "model/safetensors_header.h"

namespace fastfd::model {
namespace {

constexpr std::uint64_t kGroup = 32;  // elements of a scale
constexpr std::uint64_t kGroupBytes = kGroup / 2;
constexpr const char* kFetchAgain = "fetch the checkpoint that config.json belongs to again";

/// E2M1: sign, two bits of exponent, one of mantissa.
constexpr std::array<float, 16> kValues = {0.0F,  0.5F,  1.0F,  1.5F,  2.0F,  3.0F,  4.0F,  6.0F,
                                           -0.0F, -0.5F, -1.0F, -1.5F, -2.0F, -3.0F, -4.0F, -6.0F};
/// E8M0: 2^(bits - 127); 255 is NaN, and six times what the two before it say is beyond bf16.
constexpr int kScaleBias = 127;
constexpr std::uint8_t kLargestScale = 252;

/// What the elements mean in a group, by its scale. Exact in bf16, too.
template <typename T>
using Meanings = std::array<std::array<T, kValues.size()>, 256>;

template <typename T>
const Meanings<T>& meanings() {
  static const auto table = [] {
    Meanings<T> all{};
    for (std::size_t scale = 0; scale <= kLargestScale; ++scale) {
      for (std::size_t i = 0; i < kValues.size(); ++i) {
        const float value = std::ldexp(kValues[i], static_cast<int>(scale) - kScaleBias);
        if constexpr (std::is_same_v<T, bf16>) {
          all[scale][i] = bf16::from_float(value);
        } else {
          all[scale][i] = value;
        }
      }
    }
    return all;
  }();
  return table;
}

bool is_group_bytes(const TensorInfo& tensor) {
  return tensor.dtype == StoredDType::kU8 && tensor.shape.size() >= 3 &&
         tensor.shape.back() == kGroupBytes;
}

bool is_scale(StoredDType dtype) {
  return dtype == StoredDType::kU8 || dtype == StoredDType::kF8E8M0;
}

}  // namespace

void Checkpoint::use_mxfp4() {
  std::vector<TensorInfo> unpacked;
  for (const auto& [name, blocks] : tensors_) {
    if (!name.ends_with(kMxfp4Blocks)) {
      continue;
    }
    const std::string base = name.substr(0, name.size() - kMxfp4Blocks.size());
    if (!is_group_bytes(blocks)) {
      throw ModelError(
          fmt::format("{} is {} of shape {}, but MXFP4 blocks are U8 with {} bytes a "
                      "group; {}",
                      describe(blocks), to_string(blocks.dtype), shape_to_string(blocks.shape),
                      kGroupBytes, kFetchAgain));
    }
    if (tensors_.contains(base)) {
      throw ModelError(fmt::format("{} are blocks of {}, which is there as well; {}",
                                   describe(blocks), quote_name(base), kFetchAgain));
    }
    const auto scales = tensors_.find(base + std::string(kMxfp4Scales));
    if (scales == tensors_.end()) {
      throw ModelError(fmt::format("{} is MXFP4, but its scales {} are missing; {}",
                                   describe(blocks), quote_name(base + std::string(kMxfp4Scales)),
                                   kFetchAgain));
    }
    TensorInfo tensor = blocks;
    tensor.stored_name = name;
    tensor.name = base;
    tensor.shape.pop_back();
    const TensorInfo& scale = scales->second;
    if (!is_scale(scale.dtype) || scale.shape != tensor.shape) {
      throw ModelError(fmt::format("{} is {} of shape {}, but {} needs U8 scales of shape {}; {}",
                                   describe(scale), to_string(scale.dtype),
                                   shape_to_string(scale.shape), quote_name(name),
                                   shape_to_string(tensor.shape), kFetchAgain));
    }
    tensor.shape.back() *= kGroup;
    tensor.num_elements = blocks.num_elements * 2;
    tensor.mxfp4_scales = &scale;
    unpacked.push_back(std::move(tensor));
  }
  for (const auto& [name, scales] : tensors_) {
    const std::string base =
        name.ends_with(kMxfp4Scales) ? name.substr(0, name.size() - kMxfp4Scales.size()) : "";
    if (!base.empty() && !tensors_.contains(base + std::string(kMxfp4Blocks))) {
      throw ModelError(fmt::format("{} are scales, but {} is missing; {}", describe(scales),
                                   quote_name(base + std::string(kMxfp4Blocks)), kFetchAgain));
    }
  }
  for (TensorInfo& tensor : unpacked) {
    const std::string name = tensor.name;
    tensors_.emplace(name, std::move(tensor));
  }
}

template <typename T>
void Checkpoint::unpack_mxfp4(const TensorInfo& tensor, std::uint64_t first, std::uint64_t count,
                              T* out) const {
  // Bounds what is resident twice.
  constexpr std::uint64_t kChunk = std::uint64_t{1} << 20;
  const Meanings<T>& table = meanings<T>();
  std::vector<std::uint8_t> bytes;
  std::vector<std::uint8_t> scales;
  for (std::uint64_t done = 0; done < count;) {
    const std::uint64_t begin = first + done;
    const std::uint64_t now = std::min(kChunk, count - done);
    const std::uint64_t first_group = begin / kGroup;
    scales.resize((begin + now - 1) / kGroup + 1 - first_group);
    bytes.resize(scales.size() * kGroupBytes);
    read_stored(*tensor.mxfp4_scales, first_group, scales.size(),
                reinterpret_cast<std::byte*>(scales.data()));
    read_stored(tensor, first_group * kGroupBytes, bytes.size(),
                reinterpret_cast<std::byte*>(bytes.data()));
    const auto bad = std::find_if(scales.begin(), scales.end(),
                                  [](std::uint8_t scale) { return scale > kLargestScale; });
    if (bad != scales.end()) {
      const std::uint64_t at = first_group + static_cast<std::uint64_t>(bad - scales.begin());
      throw ModelError(
          fmt::format("{} holds {:#04x}, which is {}, as scale {}: the file is "
                      "damaged; fetch it again",
                      describe(*tensor.mxfp4_scales), *bad,
                      *bad == 0xff ? "NaN" : "beyond what bf16 holds", at));
    }
    for (std::size_t group = 0; group < scales.size(); ++group) {
      const std::uint64_t at = (first_group + group) * kGroup;
      const auto& values = table[scales[group]];
      const std::uint64_t last = std::min(at + kGroup, begin + now);
      for (std::uint64_t i = std::max(at, begin); i < last; ++i) {
        const std::uint8_t pair = bytes[group * kGroupBytes + (i - at) / 2];
        out[i - first] = values[i % 2 == 0 ? pair & 0xfU : pair >> 4U];
      }
    }
    done += now;
  }
}

template void Checkpoint::unpack_mxfp4(const TensorInfo&, std::uint64_t, std::uint64_t,
                                       bf16*) const;
template void Checkpoint::unpack_mxfp4(const TensorInfo&, std::uint64_t, std::uint64_t,
                                       float*) const;

}  // namespace fastfd::model
