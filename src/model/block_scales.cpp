// Block FP8 of a checkpoint: which tensors it is, and reading them.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <string_view>
#include <vector>

#include "fastfd/core/check.h"
#include "fastfd/model/model.h"
#include "fastfd/model/safetensors.h"
#include "kernels/quantize/op.h"
#include "model/safetensors_header.h"

namespace fastfd::model {
namespace {

constexpr std::string_view kSuffix = "_scale_inv";
constexpr auto kBlock = static_cast<std::uint64_t>(kernels::kQuantizeBlock);
constexpr const char* kFetchAgain = "fetch the checkpoint that config.json belongs to again";

std::uint64_t num_blocks(std::uint64_t dim) { return (dim + kBlock - 1) / kBlock; }

}  // namespace

std::string Checkpoint::describe(const TensorInfo& tensor) const {
  return files_[tensor.file_index].string() + ": tensor " + quote_name(tensor.name);
}

void Checkpoint::use_block_scales() {
  for (auto& [name, tensor] : tensors_) {
    if (tensor.dtype != StoredDType::kF8E4M3) {
      continue;
    }
    const auto scales = tensors_.find(name + std::string(kSuffix));
    if (scales == tensors_.end()) {
      throw ModelError(fmt::format("{} is F8_E4M3, but its scales {} are missing; {}",
                                   describe(tensor), quote_name(name + std::string(kSuffix)),
                                   kFetchAgain));
    }
    if (tensor.shape.size() != 2) {
      throw ModelError(fmt::format("{} of shape {} is F8_E4M3, which only matrices can be; {}",
                                   describe(tensor), shape_to_string(tensor.shape), kFetchAgain));
    }
    const std::array expected{num_blocks(tensor.shape[0]), num_blocks(tensor.shape[1])};
    if (!std::equal(expected.begin(), expected.end(), scales->second.shape.begin(),
                    scales->second.shape.end())) {
      throw ModelError(fmt::format(
          "{} has shape {}, but {} of shape {} has {} blocks of 128 x 128; "
          "{}",
          describe(scales->second), shape_to_string(scales->second.shape), quote_name(name),
          shape_to_string(tensor.shape), shape_to_string(expected), kFetchAgain));
    }
    require(scales->first, expected);  // a type that can be read
    tensor.block_scales = &scales->second;
  }
  for (const auto& [name, scales] : tensors_) {
    if (!name.ends_with(kSuffix)) {
      continue;
    }
    const std::string matrix = name.substr(0, name.size() - kSuffix.size());
    const auto at = tensors_.find(matrix);
    if (at == tensors_.end() || at->second.block_scales == nullptr) {
      throw ModelError(fmt::format(
          "{} are scales, but {} is {}; {}", describe(scales), quote_name(matrix),
          at == tensors_.end() ? "missing"
                               : std::string(to_string(at->second.dtype)) + ", not F8_E4M3",
          kFetchAgain));
    }
  }
}

void Checkpoint::read_bits(const TensorInfo& tensor, std::uint64_t first, std::uint64_t count,
                           std::uint8_t* e4m3) const {
  read_stored(tensor, first, count, reinterpret_cast<std::byte*>(e4m3));
  const auto signed_count = static_cast<std::int64_t>(count);
  const std::int64_t nan = kernels::find_nan_e4m3(e4m3, signed_count);
  if (nan != signed_count) {
    const std::uint64_t at = first + static_cast<std::uint64_t>(nan);
    throw ModelError(
        fmt::format("{} holds NaN (byte {:#04x}) in row {}, column {}: the file is "
                    "damaged; fetch it again",
                    describe(tensor), e4m3[nan], at / tensor.shape[1], at % tensor.shape[1]));
  }
}

void Checkpoint::read_scales(const TensorInfo& tensor, std::uint64_t first_row,
                             std::uint64_t num_rows, float* scales) const {
  const std::uint64_t cols = tensor.block_scales->shape[1];
  const std::uint64_t count = num_rows * cols;
  read(*tensor.block_scales, first_row * cols, count, scales);
  const float* bad =
      std::find_if_not(scales, scales + count, [](float scale) { return std::isfinite(scale); });
  if (bad != scales + count) {
    const std::uint64_t at = first_row * cols + static_cast<std::uint64_t>(bad - scales);
    throw ModelError(
        fmt::format("{} holds {} in row {}, column {}: the file is damaged; fetch it "
                    "again",
                    describe(*tensor.block_scales), *bad, at / cols, at % cols));
  }
}

void Checkpoint::read_fp8(const TensorInfo& tensor, std::uint8_t* e4m3, float* scales) const {
  check(tensor.block_scales != nullptr, "a tensor that is not FP8");
  read_bits(tensor, 0, tensor.num_elements, e4m3);
  read_scales(tensor, 0, tensor.block_scales->shape[0], scales);
}

template <typename T>
void Checkpoint::dequantize(const TensorInfo& tensor, std::uint64_t first, std::uint64_t count,
                            T* out) const {
  // Bounds what is resident twice.
  constexpr std::uint64_t kChunk = std::uint64_t{1} << 20;
  std::vector<std::uint8_t> e4m3(std::min(kChunk, count));
  std::vector<float> scales;
  const std::uint64_t cols = tensor.shape[1];
  for (std::uint64_t done = 0; done < count;) {
    const std::uint64_t begin = first + done;
    const std::uint64_t now = std::min(kChunk, count - done);
    const std::uint64_t first_block = begin / cols / kBlock;
    const std::uint64_t num_block_rows = (begin + now - 1) / cols / kBlock - first_block + 1;
    read_bits(tensor, begin, now, e4m3.data());
    scales.resize(num_block_rows * tensor.block_scales->shape[1]);
    read_scales(tensor, first_block, num_block_rows, scales.data());
    kernels::dequantize({.cols = static_cast<std::int64_t>(cols),
                         .first = static_cast<std::int64_t>(begin - first_block * kBlock * cols),
                         .count = static_cast<std::int64_t>(now),
                         .e4m3 = e4m3.data(),
                         .scales = scales.data()},
                        out + done);
    done += now;
  }
}

template void Checkpoint::dequantize(const TensorInfo&, std::uint64_t, std::uint64_t, bf16*) const;
template void Checkpoint::dequantize(const TensorInfo&, std::uint64_t, std::uint64_t, float*) const;

}  // namespace fastfd::model
