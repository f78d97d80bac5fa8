#include <algorithm>
#include <atomic>
#include <bit>
#include <limits>
#include <numeric>

#include "kernels/gated_delta_net/op.h"
#include "kernels_support.h"

namespace fastfd::kernels::testing {
namespace {

class GatedDeltaNetTest : public KernelTest {};
INSTANTIATE_TEST_SUITE_P(AllBackends, GatedDeltaNetTest, ::testing::ValuesIn(backends()),
                         backend_name);

const std::vector<GatedDeltaNetShape> kShapes = {
    {.num_k_heads = 2, .num_v_heads = 4, .k_head_dim = 16, .v_head_dim = 32},
    {.num_k_heads = 1, .num_v_heads = 1, .k_head_dim = 1, .v_head_dim = 1, .conv_kernel = 2},
    {.num_k_heads = 3, .num_v_heads = 3, .k_head_dim = 7, .v_head_dim = 5, .conv_kernel = 3},
    {.num_k_heads = 1, .num_v_heads = 3, .k_head_dim = 33, .v_head_dim = 77, .conv_kernel = 8},
    {.num_k_heads = 2, .num_v_heads = 4, .k_head_dim = 128, .v_head_dim = 128},
};

/// The states of a sequence. What none has written is NaN, so that reading it shows.
struct State {
  explicit State(const GatedDeltaNetShape& shape)
      : conv(static_cast<std::size_t>(shape.conv_state_floats()),
             std::numeric_limits<float>::quiet_NaN()),
        recurrent(static_cast<std::size_t>(shape.recurrent_state_floats()),
                  std::numeric_limits<float>::quiet_NaN()) {}

  GatedDeltaNetSpan span(std::int64_t first_row, std::int64_t num_rows, bool begins) {
    return {first_row, num_rows, begins, conv.data(), recurrent.data()};
  }

  std::vector<float> conv;
  std::vector<float> recurrent;
};

/// Weights of a layer and the projections of some rows.
class Layer {
 public:
  Layer(const GatedDeltaNetShape& shape, std::int64_t num_rows, std::uint32_t seed)
      : shape_(shape),
        projected_(random_floats(static_cast<std::size_t>(num_rows * shape.row_dim()), seed)),
        conv_weight_(
            random_floats(static_cast<std::size_t>(shape.conv_kernel * shape.conv_dim()), 1, 0.5F)),
        a_log_(random_floats(static_cast<std::size_t>(shape.num_v_heads), 2)),
        dt_bias_(random_floats(static_cast<std::size_t>(shape.num_v_heads), 3)),
        norm_weight_(random_floats(static_cast<std::size_t>(shape.v_head_dim), 4)) {
    projected_[static_cast<std::size_t>(shape.row_dim() - 1)] = 30.0F;  // softplus's other branch
  }

  const std::vector<float>& projected() const { return projected_; }

  /// Works on a copy of the projections, as a server makes new ones in every step.
  GatedDeltaNetParams params(std::vector<float>& projected,
                             std::span<const GatedDeltaNetSpan> spans, std::vector<float>& out) {
    out.assign(projected.size() / static_cast<std::size_t>(shape_.row_dim()) *
                   static_cast<std::size_t>(shape_.value_dim()),
               -7.0F);
    return {.shape = shape_,
            .projected = projected.data(),
            .conv_weight = conv_weight_.data(),
            .a_log = a_log_.data(),
            .dt_bias = dt_bias_.data(),
            .norm_weight = norm_weight_.data(),
            .spans = spans,
            .out = out.data()};
  }

 private:
  GatedDeltaNetShape shape_;
  std::vector<float> projected_;
  std::vector<float> conv_weight_;
  std::vector<float> a_log_;
  std::vector<float> dt_bias_;
  std::vector<float> norm_weight_;
};

TEST_P(GatedDeltaNetTest, EqualsTheReferenceRowByRowAndInItsStates) {
  for (const auto& shape : kShapes) {
    const std::int64_t num_rows = 150;  // more than a block of rows
    Layer layer(shape, num_rows, 9);
    State actual_state(shape);
    State expected_state(shape);
    std::vector<float> actual;
    std::vector<float> expected;
    auto projected = layer.projected();
    std::vector spans{actual_state.span(0, num_rows, true)};
    ASSERT_TRUE(launch_gated_delta_net(layer.params(projected, spans, actual), stream()).is_ok());
    projected = layer.projected();
    spans = {expected_state.span(0, num_rows, true)};
    reference_gated_delta_net(layer.params(projected, spans, expected));
    expect_near(actual, expected, 2e-4F, "rows");
    expect_near(actual_state.conv, expected_state.conv, 0.0F, "convolution's memory");
    expect_near(actual_state.recurrent, expected_state.recurrent, 1e-5F, "recurrent state");
  }
}

TEST_P(GatedDeltaNetTest, NeitherCutsNorOtherSequencesChangeABit) {
  for (const auto& shape : kShapes) {
    const std::int64_t num_rows = 70;
    Layer layer(shape, num_rows, 11);
    const auto row_dim = static_cast<std::size_t>(shape.row_dim());
    const auto out_dim = static_cast<std::size_t>(shape.value_dim());
    State whole_state(shape);
    std::vector<float> whole;
    auto projected = layer.projected();
    const std::vector whole_span{whole_state.span(0, num_rows, true)};
    ASSERT_TRUE(
        launch_gated_delta_net(layer.params(projected, whole_span, whole), stream()).is_ok());

    // The same tokens in pieces, each between rows of two other sequences.
    State cut_state(shape);
    State before(shape);
    State after(shape);
    std::int64_t done = 0;
    for (const std::int64_t piece : {1, 2, 1, 3, 40, 5, 1, 17}) {
      const Layer others(shape, 9, static_cast<std::uint32_t>(20 + done));
      projected.assign(others.projected().begin(),
                       others.projected().begin() + static_cast<std::ptrdiff_t>(4 * row_dim));
      projected.insert(projected.end(), layer.projected().begin() + done * shape.row_dim(),
                       layer.projected().begin() + (done + piece) * shape.row_dim());
      projected.insert(projected.end(),
                       others.projected().begin() + static_cast<std::ptrdiff_t>(4 * row_dim),
                       others.projected().end());
      const std::vector spans{before.span(0, 4, done == 0), cut_state.span(4, piece, done == 0),
                              after.span(4 + piece, 5, done == 0)};
      std::vector<float> out;
      ASSERT_TRUE(launch_gated_delta_net(layer.params(projected, spans, out), stream()).is_ok());
      ASSERT_TRUE(same_bits(out.data() + 4 * out_dim,
                            whole.data() + static_cast<std::size_t>(done) * out_dim,
                            static_cast<std::size_t>(piece) * out_dim))
          << "rows " << done << " to " << done + piece;
      done += piece;
    }
    ASSERT_EQ(done, num_rows);
    EXPECT_TRUE(same_bits(cut_state.conv.data(), whole_state.conv.data(), cut_state.conv.size()));
    EXPECT_TRUE(same_bits(cut_state.recurrent.data(), whole_state.recurrent.data(),
                          cut_state.recurrent.size()));
  }
}

TEST_P(GatedDeltaNetTest, ASequenceThatBeginsForgetsWhatItsStatesHeld) {
  const auto& shape = kShapes[0];
  Layer layer(shape, 6, 13);
  State fresh(shape);
  State used(shape);
  std::fill(used.conv.begin(), used.conv.end(), 3.0F);
  std::fill(used.recurrent.begin(), used.recurrent.end(), 5.0F);
  std::vector<float> expected;
  std::vector<float> actual;
  auto projected = layer.projected();
  std::vector spans{fresh.span(0, 6, true)};
  ASSERT_TRUE(launch_gated_delta_net(layer.params(projected, spans, expected), stream()).is_ok());
  projected = layer.projected();
  spans = {used.span(0, 6, true)};
  ASSERT_TRUE(launch_gated_delta_net(layer.params(projected, spans, actual), stream()).is_ok());
  EXPECT_TRUE(same_bits(actual.data(), expected.data(), actual.size()));
  EXPECT_TRUE(same_bits(used.recurrent.data(), fresh.recurrent.data(), fresh.recurrent.size()));
}

TEST_P(GatedDeltaNetTest, StopsWhenTheEpochIsAbandoned) {
  const auto& shape = kShapes[0];
  Layer layer(shape, 8, 17);
  State state(shape);
  const std::atomic<bool> abort{true};
  std::vector<float> out;
  auto projected = layer.projected();
  const std::vector spans{state.span(0, 8, true)};
  auto params = layer.params(projected, spans, out);
  params.abort = &abort;
  EXPECT_EQ(launch_gated_delta_net(params, stream()).code(), StatusCode::kAborted);
  EXPECT_EQ(out.front(), -7.0F);
}

TEST_P(GatedDeltaNetTest, RefusesShapesThatDoNotFit) {
  State state(kShapes[0]);
  Layer layer(kShapes[0], 4, 19);
  std::vector<float> out;
  auto projected = layer.projected();
  const std::vector spans{state.span(0, 4, true)};
  const std::vector empty{state.span(0, 0, true)};
  const auto code_of = [&](const auto& change) {
    auto params = layer.params(projected, spans, out);
    change(params);
    return launch_gated_delta_net(params, stream()).code();
  };
  using Params = GatedDeltaNetParams;
  EXPECT_EQ(code_of([](Params&) {}), StatusCode::kOk);
  for (const auto code : {code_of([](Params& p) { p.shape.num_v_heads = 3; }),
                          code_of([](Params& p) { p.shape.num_k_heads = 0; }),
                          code_of([](Params& p) { p.shape.k_head_dim = 0; }),
                          code_of([](Params& p) { p.shape.conv_kernel = 1; }),
                          code_of([](Params& p) { p.shape.conv_kernel = kMaxConvKernel + 1; }),
                          code_of([&](Params& p) { p.spans = empty; })}) {
    EXPECT_EQ(code, StatusCode::kInvalidArgument);
  }
}

}  // namespace
}  // namespace fastfd::kernels::testing
