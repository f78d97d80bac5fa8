// Weights that are made or quantised on the GPU against those of the CPU: bit by bit.
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
  ASSERT_EQ(gpu.num_experts, 3U);
  ASSERT_EQ(gpu.dtype, DType::kBFloat16);
  ASSERT_EQ(fp8.dtype, DType::kFloat8E4M3);
  ASSERT_EQ(fp8.layers.size(), spec.num_layers);
  for (std::size_t layer = 0; layer < spec.num_layers; ++layer) {
    for (std::size_t expert = 0; expert < 3; ++expert) {
      SCOPED_TRACE(std::to_string(layer) + ", expert " + std::to_string(expert));
      const auto down =
          read_back(static_cast<const bf16*>(gpu.layers[layer].down) + expert * kDown, kDown);
      const auto gate_up = read_back(
          static_cast<const bf16*>(gpu.layers[layer].gate_up) + expert * 2 * kDown, 2 * kDown);
      const auto& packed = cpu.layers[layer][expert];
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
                       static_cast<const std::uint8_t*>(fp8.layers[layer].gate_up),
                       fp8.layers[layer].gate_up_scales, expert);
      expect_quantised(down, kHidden, kIntermediate,
                       static_cast<const std::uint8_t*>(fp8.layers[layer].down),
                       fp8.layers[layer].down_scales, expert);
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
  const auto& packed = cpu.layers[1].qkv;
  const auto qkv = read_back(gpu.layers[1].qkv, static_cast<std::size_t>(packed.n()) * kHidden);
  for (std::int64_t row = 0; row < packed.n(); ++row) {
    for (std::int64_t col = 0; col < kHidden; ++col) {
      ASSERT_EQ(qkv[static_cast<std::size_t>(row * kHidden + col)], packed.at(row, col));
    }
  }
}

}  // namespace
}  // namespace fastfd::testing
