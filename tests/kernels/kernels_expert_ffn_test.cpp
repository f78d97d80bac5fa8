#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstring>
#include <tuple>

#include "kernels/expert_ffn/op.h"
#include "kernels_support.h"

namespace fastfd::kernels::testing {
namespace {

class ExpertFfnTest : public KernelTest {};
INSTANTIATE_TEST_SUITE_P(AllBackends, ExpertFfnTest, ::testing::ValuesIn(backends()), backend_name);

struct Formats {
  DType token_dtype = DType::kFloat32;
  DType out_dtype = DType::kFloat32;
  Precision precision = Precision::kFloat32;
};

constexpr Formats kFormats[] = {
    {DType::kFloat32, DType::kFloat32, Precision::kFloat32},
    {DType::kBFloat16, DType::kFloat32, Precision::kFloat32},
    {DType::kFloat32, DType::kFloat32, Precision::kBFloat16},
    {DType::kBFloat16, DType::kBFloat16, Precision::kBFloat16},
};

std::vector<ExpertWeights> random_experts(std::size_t num_experts, std::int64_t hidden_dim,
                                          std::int64_t intermediate_dim) {
  std::vector<ExpertWeights> experts;
  const auto count = static_cast<std::size_t>(hidden_dim * intermediate_dim);
  const float scale = 1.0F / std::sqrt(static_cast<float>(hidden_dim));
  for (std::uint32_t i = 0; i < num_experts; ++i) {
    const auto gate = random_bf16(count, 100 + i, scale);
    const auto up = random_bf16(count, 200 + i, scale);
    const auto down = random_bf16(count, 300 + i, scale);
    experts.push_back(
        ExpertWeights::pack(gate.data(), up.data(), down.data(), hidden_dim, intermediate_dim));
  }
  return experts;
}

/// The same with biases, which are as large as what they are added to.
std::vector<ExpertWeights> random_biased_experts(std::size_t num_experts, std::int64_t hidden_dim,
                                                 std::int64_t intermediate_dim) {
  auto experts = random_experts(num_experts, hidden_dim, intermediate_dim);
  for (std::uint32_t i = 0; i < num_experts; ++i) {
    const auto units = static_cast<std::size_t>(intermediate_dim);
    experts[i].set_biases(random_floats(units, 400 + i), random_floats(units, 500 + i),
                          random_floats(static_cast<std::size_t>(hidden_dim), 600 + i));
  }
  return experts;
}

constexpr ActivationRule kClamped{.kind = GatedActivation::kClampedSwiglu, .limit = 1.5F};

/// Tokens, routes and results of one call, in buffers of their own.
class Batch {
 public:
  using Routes = std::vector<std::vector<std::pair<std::uint32_t, float>>>;

  Batch(std::int64_t hidden_dim, const Formats& formats, const Routes& routes,
        const std::vector<std::uint32_t>& token_seeds)
      : hidden_dim_(hidden_dim), formats_(formats) {
    offsets_.push_back(0);
    for (std::size_t token = 0; token < routes.size(); ++token) {
      for (const auto& [expert, weight] : routes[token]) {
        experts_.push_back(expert);
        weights_.push_back(weight);
      }
      offsets_.push_back(static_cast<std::uint32_t>(experts_.size()));
      const auto dim = static_cast<std::size_t>(hidden_dim);
      const auto values = random_floats(dim, token_seeds[token]);
      const auto rounded = to_bf16(values);
      const bool is_float = formats.token_dtype == DType::kFloat32;
      const auto* bytes = is_float ? reinterpret_cast<const std::byte*>(values.data())
                                   : reinterpret_cast<const std::byte*>(rounded.data());
      tokens_.emplace_back(bytes, bytes + dim * dtype_bytes(formats.token_dtype));
      outs_.emplace_back(dim * dtype_bytes(formats.out_dtype), std::byte{0x5a});
    }
    for (std::size_t token = 0; token < routes.size(); ++token) {
      token_rows_.push_back(tokens_[token].data());
      out_rows_.push_back(outs_[token].data());
    }
  }

  ExpertFfnParams params(std::span<const ExpertWeights> experts, std::int64_t intermediate_dim) {
    return {.num_tokens = static_cast<std::int64_t>(tokens_.size()),
            .hidden_dim = hidden_dim_,
            .intermediate_dim = intermediate_dim,
            .token_rows = token_rows_.data(),
            .token_dtype = formats_.token_dtype,
            .route_offsets = offsets_.data(),
            .route_experts = experts_.data(),
            .route_weights = weights_.data(),
            .experts = experts,
            .out_rows = out_rows_.data(),
            .out_dtype = formats_.out_dtype,
            .precision = formats_.precision};
  }

  std::vector<float> out(std::size_t token) const {
    std::vector<float> values(static_cast<std::size_t>(hidden_dim_));
    for (std::size_t i = 0; i < values.size(); ++i) {
      if (formats_.out_dtype == DType::kFloat32) {
        std::memcpy(&values[i], outs_[token].data() + i * sizeof(float), sizeof(float));
      } else {
        bf16 value;
        std::memcpy(&value, outs_[token].data() + i * sizeof(bf16), sizeof(bf16));
        values[i] = value.to_float();
      }
    }
    return values;
  }

  std::size_t size() const { return tokens_.size(); }
  bool is_untouched() const {
    return std::all_of(outs_.begin(), outs_.end(), [](const auto& row) {
      return std::all_of(row.begin(), row.end(), [](std::byte b) { return b == std::byte{0x5a}; });
    });
  }

 private:
  std::int64_t hidden_dim_;
  Formats formats_;
  std::vector<std::uint32_t> offsets_;
  std::vector<std::uint32_t> experts_;
  std::vector<float> weights_;
  std::vector<std::vector<std::byte>> tokens_;
  std::vector<std::vector<std::byte>> outs_;
  std::vector<const void*> token_rows_;
  std::vector<void*> out_rows_;
};

std::vector<std::uint32_t> seeds(std::size_t count) {
  std::vector<std::uint32_t> values;
  for (std::uint32_t i = 0; i < count; ++i) {
    values.push_back(1000 + i);
  }
  return values;
}

/// 0 .. 4 routes a token, experts in no order.
Batch::Routes random_routes(std::size_t num_tokens, std::uint32_t num_experts) {
  std::mt19937 engine(77);
  Batch::Routes routes(num_tokens);
  for (auto& row : routes) {
    std::vector<std::uint32_t> ids(num_experts);
    for (std::uint32_t i = 0; i < num_experts; ++i) {
      ids[i] = i;
    }
    std::shuffle(ids.begin(), ids.end(), engine);
    const std::size_t count = engine() % std::min<std::size_t>(5, num_experts + 1);
    for (std::size_t i = 0; i < count; ++i) {
      row.emplace_back(ids[i], 0.1F + 0.001F * static_cast<float>(engine() % 900));
    }
  }
  return routes;
}

void expect_equals_reference(const device::CpuStream& stream, std::int64_t hidden_dim,
                             std::int64_t intermediate_dim,
                             const std::vector<ExpertWeights>& experts, const Batch::Routes& routes,
                             const std::string& what, const ActivationRule& activation = {}) {
  ExpertFfnScratch scratch;
  for (const Formats& formats : kFormats) {
    Batch actual(hidden_dim, formats, routes, seeds(routes.size()));
    Batch expected(hidden_dim, formats, routes, seeds(routes.size()));
    auto params = actual.params(experts, intermediate_dim);
    params.activation = activation;
    ASSERT_TRUE(launch_expert_ffn(params, scratch, stream).is_ok());
    params = expected.params(experts, intermediate_dim);
    params.activation = activation;
    reference_expert_ffn(params);
    // A hidden unit on the border between two bf16 values may round differently.
    const bool rounded = formats.precision == Precision::kBFloat16;
    const float tolerance = formats.out_dtype == DType::kBFloat16 ? 1e-2F : rounded ? 2e-3F : 2e-5F;
    for (std::size_t token = 0; token < routes.size(); ++token) {
      expect_near(actual.out(token), expected.out(token), tolerance,
                  what + ", token " + std::to_string(token));
    }
  }
}

void expect_equals_reference(const device::CpuStream& stream, std::int64_t hidden_dim,
                             std::int64_t intermediate_dim, std::size_t num_experts,
                             const Batch::Routes& routes, const std::string& what) {
  expect_equals_reference(stream, hidden_dim, intermediate_dim,
                          random_experts(num_experts, hidden_dim, intermediate_dim), routes, what);
}

TEST_P(ExpertFfnTest, EqualsTheReference) {
  expect_equals_reference(stream(), 64, 32, 4, random_routes(9, 4), "small");
  expect_equals_reference(stream(), 256, 128, 8, random_routes(50, 8), "model");
  expect_equals_reference(stream(), 65, 37, 3, random_routes(20, 3), "odd");
  expect_equals_reference(stream(), 128, 1, 2, random_routes(5, 2), "one hidden unit");
}

TEST_P(ExpertFfnTest, BiasesAndClampsEqualTheReference) {
  const auto routes = random_routes(50, 5);
  for (const auto& [hidden, units] : {std::pair{64, 32}, {256, 96}, {65, 37}, {130, 1}}) {
    const std::string what = fmt::format("{} x {}", hidden, units);
    const auto experts = random_biased_experts(5, hidden, units);
    expect_equals_reference(stream(), hidden, units, experts, routes, "biases, " + what);
    expect_equals_reference(stream(), hidden, units, experts, routes, "both, " + what, kClamped);
    expect_equals_reference(stream(), hidden, units, random_experts(5, hidden, units), routes,
                            "clamps, " + what, kClamped);
  }
}

// Figures by hand: gate and up of the one unit are biases alone, down is 1.
TEST_P(ExpertFfnTest, TheClampedActivationIsThatOfGptOss) {
  const std::vector<bf16> zeros(64, bf16{0});
  std::vector<bf16> ones(64, bf16::from_float(1.0F));
  ExpertFfnScratch scratch;
  const ActivationRule rule{.kind = GatedActivation::kClampedSwiglu};
  const auto sigmoid = [](double x) { return 1.0 / (1.0 + std::exp(-x)); };
  for (const auto& [gate, up, expected] :
       {std::tuple{1.0F, 2.0F, 3.0 * sigmoid(1.702)},
        std::tuple{9.0F, -8.5F, -6.0 * 7.0 * sigmoid(7.0 * 1.702)},
        std::tuple{-9.0F, 12.0F, 8.0 * -9.0 * sigmoid(-9.0 * 1.702)}}) {
    std::vector<ExpertWeights> experts(1);
    experts[0] = ExpertWeights::pack(zeros.data(), zeros.data(), ones.data(), 64, 1);
    const std::vector<float> down(64, 0.25F);
    experts[0].set_biases({{gate}}, {{up}}, down);
    Batch batch(64, {}, {{{0, 0.5F}}}, seeds(1));
    auto params = batch.params(experts, 1);
    params.activation = rule;
    ASSERT_TRUE(launch_expert_ffn(params, scratch, stream()).is_ok());
    expect_near(batch.out(0), std::vector<float>(64, static_cast<float>(0.5 * (expected + 0.25))),
                1e-5F, fmt::format("{} {}", gate, up));
  }
}

TEST_P(ExpertFfnTest, AllTokensOfOneExpertSpanSeveralBlocks) {
  const Batch::Routes routes(150, {{2, 0.5F}});
  expect_equals_reference(stream(), 64, 64, 4, routes, "one expert");
}

TEST_P(ExpertFfnTest, AnExpertNamedTwiceByATokenCountsTwice) {
  expect_equals_reference(stream(), 64, 32, 2, {{{1, 0.25F}, {0, 0.5F}, {1, 0.125F}}}, "twice");
}

TEST_P(ExpertFfnTest, TokensWithoutRoutesGetZeros) {
  const auto experts = random_experts(2, 64, 32);
  ExpertFfnScratch scratch;
  for (const Formats& formats : kFormats) {
    Batch batch(64, formats, {{}, {{1, 1.0F}}, {}}, seeds(3));
    ASSERT_TRUE(launch_expert_ffn(batch.params(experts, 32), scratch, stream()).is_ok());
    EXPECT_EQ(batch.out(0), std::vector<float>(64, 0.0F));
    EXPECT_EQ(batch.out(2), std::vector<float>(64, 0.0F));
    EXPECT_NE(batch.out(1), std::vector<float>(64, 0.0F));
    Batch none(64, formats, {{}, {}}, seeds(2));
    ASSERT_TRUE(launch_expert_ffn(none.params(experts, 32), scratch, stream()).is_ok());
    EXPECT_EQ(none.out(1), std::vector<float>(64, 0.0F));
    ExpertFfnParams no_tokens;
    no_tokens.hidden_dim = 64;
    no_tokens.intermediate_dim = 32;
    EXPECT_TRUE(launch_expert_ffn(no_tokens, scratch, stream()).is_ok());
  }
}

TEST_P(ExpertFfnTest, TokensDoNotDependOnEachOther) {
  const auto experts = random_experts(8, 256, 96);
  const auto routes = random_routes(140, 8);
  ExpertFfnScratch scratch;
  for (const Formats& formats : kFormats) {
    Batch all(256, formats, routes, seeds(routes.size()));
    ASSERT_TRUE(launch_expert_ffn(all.params(experts, 96), scratch, stream()).is_ok());
    for (std::size_t token = 0; token < routes.size(); token += 7) {
      Batch alone(256, formats, {routes[token]}, {seeds(routes.size())[token]});
      ASSERT_TRUE(launch_expert_ffn(alone.params(experts, 96), scratch, stream()).is_ok());
      EXPECT_EQ(alone.out(0), all.out(token)) << token;
    }
  }
}

TEST_P(ExpertFfnTest, OrderOfATokensRoutesDoesNotMatter) {
  const auto experts = random_experts(4, 64, 32);
  ExpertFfnScratch scratch;
  Batch ascending(64, {}, {{{0, 0.3F}, {1, 0.2F}, {3, 0.5F}}}, seeds(1));
  Batch shuffled(64, {}, {{{3, 0.5F}, {0, 0.3F}, {1, 0.2F}}}, seeds(1));
  ASSERT_TRUE(launch_expert_ffn(ascending.params(experts, 32), scratch, stream()).is_ok());
  ASSERT_TRUE(launch_expert_ffn(shuffled.params(experts, 32), scratch, stream()).is_ok());
  EXPECT_EQ(ascending.out(0), shuffled.out(0));
}

TEST_P(ExpertFfnTest, InvalidRoutesStoreNothing) {
  const auto experts = random_experts(2, 64, 32);
  ExpertFfnScratch scratch;
  for (const std::uint32_t expert : {2U, 0xffffffffU}) {
    Batch batch(64, {}, {{{0, 1.0F}}, {{expert, 1.0F}}}, seeds(2));
    const Status status = launch_expert_ffn(batch.params(experts, 32), scratch, stream());
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_TRUE(batch.is_untouched());
  }
  Batch batch(64, {}, {{{0, 1.0F}}, {{1, 1.0F}}}, seeds(2));
  auto params = batch.params(experts, 32);
  const std::uint32_t descending[] = {0, 2, 1};
  params.route_offsets = descending;
  EXPECT_EQ(launch_expert_ffn(params, scratch, stream()).code(), StatusCode::kInvalidArgument);
  const std::uint32_t late[] = {1, 1, 2};
  params.route_offsets = late;
  EXPECT_EQ(launch_expert_ffn(params, scratch, stream()).code(), StatusCode::kInvalidArgument);
  params = batch.params(experts, 64);
  EXPECT_EQ(launch_expert_ffn(params, scratch, stream()).code(), StatusCode::kInvalidArgument);
  auto biased = random_biased_experts(2, 64, 32);
  biased[1].down_bias.pop_back();
  EXPECT_EQ(launch_expert_ffn(batch.params(biased, 32), scratch, stream()).code(),
            StatusCode::kInvalidArgument);
  EXPECT_TRUE(batch.is_untouched());
}

TEST_P(ExpertFfnTest, AbortEndsTheLaunch) {
  const auto experts = random_experts(2, 64, 32);
  ExpertFfnScratch scratch;
  Batch batch(64, {}, {{{0, 1.0F}}}, seeds(1));
  auto params = batch.params(experts, 32);
  std::atomic<bool> abort{true};
  params.abort = &abort;
  EXPECT_EQ(launch_expert_ffn(params, scratch, stream()).code(), StatusCode::kAborted);
  EXPECT_TRUE(batch.is_untouched());
}

}  // namespace
}  // namespace fastfd::kernels::testing
