// Weights that are made, quantised or put on the GPU against those of the CPU: bit by bit.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "fastfd/device/cuda.h"
#include "fastfd/model/device_weights.h"
#include "kernels/quantize/op_cuda.h"
#include "kernels/random_fill/op_cuda.h"
#include "support/tiny_checkpoint.h"
#include "tests/gpu/device_array.h"

namespace fastfd::testing {
namespace {

std::vector<bf16> random_values(std::uint64_t key, std::size_t count, float stddev) {
  std::vector<bf16> values(count);
  kernels::random_fill({.key = key, .count = count, .stddev = stddev, .out = values.data()});
  return values;
}

/// `count` elements of device memory.
template <typename T>
std::vector<T> read_back(const T* from, std::size_t count) {
  std::vector<T> values(count);
  require_cuda(cudaMemcpy(values.data(), from, count * sizeof(T), cudaMemcpyDeviceToHost), "copy");
  return values;
}

TEST(RandomFillCudaTest, GivesTheBitsOfTheCpu) {
  for (const std::size_t count : {0UL, 1UL, 7UL, 8UL, 9UL, 4095UL, 20'000'003UL}) {
    DeviceArray<bf16> actual(count + 1);
    const kernels::RandomFillParams params{
        .key = 12345, .first = 1000, .count = count, .stddev = 0.02F, .out = actual.data()};
    const Status status = kernels::cuda::launch_random_fill(params, nullptr);
    ASSERT_TRUE(status.is_ok()) << status.message();
    std::vector<bf16> expected(count + 1, bf16{0xffff});  // what nobody wrote stays
    auto on_cpu = params;
    on_cpu.out = expected.data();
    kernels::random_fill(on_cpu);
    EXPECT_EQ(actual.get(), expected) << count;
  }
}

TEST(RandomFillCudaTest, RefusesWhatIsNotAligned) {
  DeviceArray<bf16> values(64);
  EXPECT_EQ(
      kernels::cuda::launch_random_fill({.count = 8, .out = values.data() + 1}, nullptr).code(),
      StatusCode::kInvalidArgument);
}

TEST(QuantizeCudaTest, GivesTheBitsOfTheReference) {
  struct Dims {
    std::int64_t rows;
    std::int64_t cols;
  };
  for (const auto [rows, cols] : {Dims{128, 128}, Dims{1536, 2048}, Dims{3072, 1536}}) {
    const auto count = static_cast<std::size_t>(rows * cols);
    auto values = random_values(static_cast<std::uint64_t>(rows), count, 0.02F);
    // Blocks of zeros, of tiny and of large magnitudes.
    for (std::size_t i = 0; i < count && count > 128 * 128; ++i) {
      const std::size_t block = i / static_cast<std::size_t>(cols) / 128 % 4;
      const float factor = block == 0 ? 1.0F : block == 1 ? 0.0F : block == 2 ? 1e-38F : 1e20F;
      values[i] = bf16::from_float(values[i].to_float() * factor);
    }
    const DeviceArray<bf16> on_device(values);
    DeviceArray<std::uint8_t> e4m3(count);
    DeviceArray<float> scales(count / (128 * 128));
    const Status status = kernels::cuda::launch_quantize({.rows = rows,
                                                          .cols = cols,
                                                          .values = on_device.data(),
                                                          .e4m3 = e4m3.data(),
                                                          .scales = scales.data()},
                                                         nullptr);
    ASSERT_TRUE(status.is_ok()) << status.message();
    std::vector<std::uint8_t> expected(count);
    std::vector<float> expected_scales(scales.size());
    kernels::reference_quantize({.rows = rows,
                                 .cols = cols,
                                 .values = values.data(),
                                 .e4m3 = expected.data(),
                                 .scales = expected_scales.data()});
    EXPECT_EQ(e4m3.get(), expected);
    EXPECT_EQ(scales.get(), expected_scales);
  }
}

TEST(QuantizeCudaTest, RefusesPartsOfBlocks) {
  EXPECT_EQ(kernels::cuda::launch_quantize({.rows = 128, .cols = 130}, nullptr).code(),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(kernels::cuda::launch_quantize({.rows = 0, .cols = 128}, nullptr).code(),
            StatusCode::kInvalidArgument);
}

/// Expert `expert` of a stack that was quantised is what the reference makes of `values`.
void expect_quantised(const std::vector<bf16>& values, std::int64_t rows, std::int64_t cols,
                      const std::uint8_t* stack, const float* scales, std::size_t expert) {
  const std::size_t count = values.size();
  const std::size_t num_scales = count / (128 * 128);
  std::vector<std::uint8_t> expected(count);
  std::vector<float> expected_scales(num_scales);
  kernels::reference_quantize({.rows = rows,
                               .cols = cols,
                               .values = values.data(),
                               .e4m3 = expected.data(),
                               .scales = expected_scales.data()});
  EXPECT_EQ(read_back(stack + expert * count, count), expected);
  EXPECT_EQ(read_back(scales + expert * num_scales, num_scales), expected_scales);
}

/// A dummy model of which the GPU holds one server's experts.
class DummyExpertsTest : public ::testing::Test {
 protected:
  DummyExpertsTest() {
    test::TinyCheckpointOptions options;
    options.hidden_dim = kHidden;
    options.expert_intermediate_dim = kIntermediate;
    options.num_experts = 6;
    test::write_file(folder_.path() / "config.json", test::make_tiny_config(options));
  }

  model::ModelSpec load_spec(DType expert_dtype) const {
    return model::load_model_spec(
        folder_.path(),
        {.format = LoadFormat::kDummy, .dummy_seed = 5, .expert_dtype = expert_dtype});
  }

  static constexpr std::uint32_t kHidden = 384;
  static constexpr std::uint32_t kIntermediate = 256;
  static constexpr std::size_t kDown = std::size_t{kHidden} * kIntermediate;
  const device::CudaDevice device_ = device::CudaDevice::open(0);
  const ExpertPlacement placement_ = ExpertPlacement::contiguous(6, 2, 1);
  test::TemporaryFolder folder_;
};

TEST_F(DummyExpertsTest, AreTheOnesOfTheCpuAndQuantisedAsTheReferenceDoes) {
  const auto spec = load_spec(DType::kBFloat16);
  const auto cpu = model::load_ffn_weights(folder_.path(), spec, placement_, 1);
  const auto gpu = model::upload_ffn_weights(folder_.path(), spec, placement_, 1, device_);
  const auto fp8 = model::upload_ffn_weights(folder_.path(), load_spec(DType::kFloat8E4M3),
                                             placement_, 1, device_);
  ASSERT_EQ(gpu.layers[0].dims.num_experts, 3U);
  ASSERT_EQ(gpu.dtype, DType::kBFloat16);
  ASSERT_EQ(fp8.dtype, DType::kFloat8E4M3);
  ASSERT_EQ(fp8.layers.size(), spec.num_layers);
  for (std::size_t layer = 0; layer < spec.num_layers; ++layer) {
    for (std::size_t expert = 0; expert < 3; ++expert) {
      SCOPED_TRACE(std::to_string(layer) + ", expert " + std::to_string(expert));
      const auto down = read_back(
          static_cast<const bf16*>(gpu.layers[layer].weights.down) + expert * kDown, kDown);
      const auto gate_up = read_back(
          static_cast<const bf16*>(gpu.layers[layer].weights.gate_up) + expert * 2 * kDown,
          2 * kDown);
      const auto& packed = cpu.layers[layer].experts[expert];
      for (std::uint32_t row = 0; row < kHidden; ++row) {
        for (std::uint32_t col = 0; col < kIntermediate; ++col) {
          ASSERT_EQ(down[row * kIntermediate + col], packed.down.at(row, col));
        }
      }
      for (std::uint32_t row = 0; row < kIntermediate; ++row) {
        const std::int64_t packed_row = row / 32 * 64 + row % 32;  // see kernels::ExpertWeights
        for (std::uint32_t col = 0; col < kHidden; ++col) {
          ASSERT_EQ(gate_up[row * kHidden + col], packed.gate_up.at(packed_row, col));
          ASSERT_EQ(gate_up[kDown + row * kHidden + col], packed.gate_up.at(packed_row + 32, col));
        }
      }
      expect_quantised(gate_up, 2 * kIntermediate, kHidden,
                       static_cast<const std::uint8_t*>(fp8.layers[layer].weights.gate_up),
                       fp8.layers[layer].weights.gate_up_scales, expert);
      expect_quantised(down, kHidden, kIntermediate,
                       static_cast<const std::uint8_t*>(fp8.layers[layer].weights.down),
                       fp8.layers[layer].weights.down_scales, expert);
    }
  }
}

TEST_F(DummyExpertsTest, AttentionWeightsAreTheOnesOfTheCpu) {
  const auto spec = load_spec(DType::kBFloat16);
  const auto cpu = model::load_attention_weights(folder_.path(), spec);
  const auto gpu = model::upload_attention_weights(folder_.path(), spec, device_);
  EXPECT_EQ(read_back(gpu.embedding, cpu.embedding.size()), cpu.embedding);
  EXPECT_EQ(read_back(gpu.final_norm, kHidden), cpu.final_norm);
  ASSERT_EQ(gpu.layers.size(), cpu.layers.size());
  const auto& packed = cpu.layers[1].full.qkv;
  const auto qkv =
      read_back(gpu.layers[1].full.qkv, static_cast<std::size_t>(packed.n()) * kHidden);
  for (std::int64_t row = 0; row < packed.n(); ++row) {
    for (std::int64_t col = 0; col < kHidden; ++col) {
      ASSERT_EQ(qkv[static_cast<std::size_t>(row * kHidden + col)], packed.at(row, col));
    }
  }
}

/// A block FP8 checkpoint.
class Fp8CheckpointTest : public ::testing::Test {
 protected:
  Fp8CheckpointTest() {
    options_.fp8 = true;
    options_.hidden_dim = 384;
    options_.expert_intermediate_dim = 256;
    options_.num_experts = 6;
  }
  void write(const test::TinyTensors& tensors) const {
    test::write_file(folder_.path() / "config.json", test::make_tiny_config(options_));
    test::write_safetensors(folder_.path() / "model.safetensors", tensors);
  }
  static std::string expert_name(std::size_t layer, std::size_t expert, const char* projection) {
    return "model.layers." + std::to_string(layer) + ".mlp.experts." + std::to_string(expert) +
           "." + projection + ".weight";
  }
  /// Matrix `index` of a stack of such matrices is the tensor, bit for bit.
  static void expect_bits(const test::TinyTensors& tensors, const std::string& name,
                          const void* stack, const float* scales, std::size_t index) {
    const auto& bits = tensors.at(name).bits;
    const auto& expected_scales = tensors.at(name + "_scale_inv").values;
    const auto* e4m3 = static_cast<const std::uint8_t*>(stack) + index * bits.size();
    EXPECT_EQ(read_back(e4m3, bits.size()), bits) << name;
    const std::size_t num_scales = expected_scales.size();
    EXPECT_EQ(read_back(scales + index * num_scales, num_scales), expected_scales) << name;
  }

  const device::CudaDevice device_ = device::CudaDevice::open(0);
  const ExpertPlacement placement_ = ExpertPlacement::contiguous(6, 2, 1);
  test::TinyCheckpointOptions options_;
  test::TemporaryFolder folder_;
};

TEST_F(Fp8CheckpointTest, ExpertsAreUploadedBitForBit) {
  const auto tensors = test::make_tiny_tensors(options_);
  write(tensors);
  const auto spec = model::load_model_spec(folder_.path(), {.expert_dtype = std::nullopt});
  const auto gpu = model::upload_ffn_weights(folder_.path(), spec, placement_, 1, device_);
  ASSERT_EQ(gpu.dtype, DType::kFloat8E4M3);
  ASSERT_EQ(gpu.layers.size(), options_.num_layers);
  for (std::size_t layer = 0; layer < gpu.layers.size(); ++layer) {
    const auto& weights = gpu.layers[layer].weights;
    for (std::size_t i = 0; i < 3; ++i) {
      const std::size_t expert = 3 + i;
      expect_bits(tensors, expert_name(layer, expert, "gate_proj"), weights.gate_up,
                  weights.gate_up_scales, 2 * i);
      expect_bits(tensors, expert_name(layer, expert, "up_proj"), weights.gate_up,
                  weights.gate_up_scales, 2 * i + 1);
      expect_bits(tensors, expert_name(layer, expert, "down_proj"), weights.down,
                  weights.down_scales, i);
    }
  }
}

// FP8 was asked for, and the checkpoint's author left one expert out.
TEST_F(Fp8CheckpointTest, WhatIsNotFp8IsQuantisedBesideWhatIs) {
  auto tensors = test::make_tiny_tensors(options_);
  const std::string plain = expert_name(0, 4, "down_proj");
  tensors.at(plain).dtype = "BF16";
  tensors.at(plain).bits.clear();
  tensors.erase(plain + "_scale_inv");
  write(tensors);
  const auto spec = model::load_model_spec(folder_.path(), {.expert_dtype = DType::kFloat8E4M3});
  const auto gpu = model::upload_ffn_weights(folder_.path(), spec, placement_, 1, device_);
  const auto& weights = gpu.layers[0].weights;
  expect_bits(tensors, expert_name(0, 3, "down_proj"), weights.down, weights.down_scales, 0);
  expect_bits(tensors, expert_name(0, 5, "down_proj"), weights.down, weights.down_scales, 2);
  std::vector<bf16> values;
  for (const float value : tensors.at(plain).values) {
    values.push_back(bf16::from_float(value));
  }
  expect_quantised(values, 384, 256, static_cast<const std::uint8_t*>(weights.down),
                   weights.down_scales, 1);
}

TEST_F(Fp8CheckpointTest, DequantisedOnTheGpuAsOnTheCpu) {
  write(test::make_tiny_tensors(options_));
  const auto spec = model::load_model_spec(folder_.path());  // experts in bf16
  const auto cpu = model::load_ffn_weights(folder_.path(), spec, placement_, 0);
  const auto gpu = model::upload_ffn_weights(folder_.path(), spec, placement_, 0, device_);
  ASSERT_EQ(gpu.dtype, DType::kBFloat16);
  const std::size_t count = std::size_t{384} * 256;
  const auto down =
      read_back(static_cast<const bf16*>(gpu.layers[1].weights.down) + 2 * count, count);
  for (std::size_t i = 0; i < count; ++i) {
    ASSERT_EQ(down[i], cpu.layers[1].experts[2].down.at(static_cast<std::int64_t>(i / 256),
                                                        static_cast<std::int64_t>(i % 256)));
  }
  const auto cpu_attention = model::load_attention_weights(folder_.path(), spec);
  const auto gpu_attention = model::upload_attention_weights(folder_.path(), spec, device_);
  const auto& packed = cpu_attention.layers[0].full.out;
  const auto out = read_back(gpu_attention.layers[0].full.out,
                             static_cast<std::size_t>(packed.n() * packed.k()));
  for (std::int64_t row = 0; row < packed.n(); ++row) {
    for (std::int64_t col = 0; col < packed.k(); ++col) {
      ASSERT_EQ(out[static_cast<std::size_t>(row * packed.k() + col)], packed.at(row, col));
    }
  }
}

}  // namespace
}  // namespace fastfd::testing
