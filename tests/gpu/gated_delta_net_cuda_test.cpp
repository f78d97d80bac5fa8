#include <utility>

#include "attention_support.h"
#include "kernels/gated_delta_net/op.h"
#include "kernels/gated_delta_net/op_cuda.h"

namespace fastfd::testing {
namespace {

using kernels::GatedDeltaNetShape;

constexpr std::int64_t kNumSlots = 4;
// More rows and spans than any launch has. In the larger one a warp convolves several rows.
constexpr std::int64_t kBucket = 96;
constexpr std::int64_t kLargeBucket = 300;

/// A part of a sequence that one launch runs.
struct Piece {
  SlotId slot = 0;
  std::uint32_t start = 0;
  std::uint32_t num_rows = 0;
};

/// A layer of random weights, and the projections of `kLength` rows of each slot's sequence.
class Problem {
 public:
  static constexpr std::uint32_t kLength = 60;

  explicit Problem(const GatedDeltaNetShape& shape, std::int64_t bucket = kBucket)
      : shape_(shape),
        bucket_(bucket),
        projected_(to_bf16(random_floats(count(kNumSlots * kLength * shape.row_dim()), 11))),
        conv_weight_(random_floats(count(shape.conv_kernel * shape.conv_dim()), 1, 0.5F)),
        a_log_(random_floats(count(shape.num_v_heads), 2)),
        dt_bias_(random_floats(count(shape.num_v_heads), 3)),
        norm_weight_(random_floats(count(shape.v_head_dim), 4)),
        device_conv_(conv_weight_),
        device_a_log_(a_log_),
        device_dt_bias_(dt_bias_),
        device_norm_(norm_weight_),
        conv_states_(count(kNumSlots * shape.conv_state_floats())),
        recurrent_states_(count(kNumSlots * kernels::cuda::recurrent_state_floats(shape))) {}

  /// Out of every piece, as floats; empty if the epoch was aborted and nothing was written.
  std::vector<std::vector<float>> run(const std::vector<Piece>& pieces, bool aborted = false) {
    std::vector<layout::LaneRow> rows;
    std::vector<layout::LaneSpan> spans;
    std::vector<bf16> projected;
    for (const Piece& piece : pieces) {
      spans.push_back({.first_row = static_cast<std::uint32_t>(rows.size()),
                       .num_rows = piece.num_rows,
                       .start_position = piece.start,
                       .slot = piece.slot});
      for (std::uint32_t i = 0; i < piece.num_rows; ++i) {
        rows.push_back({.slot = piece.slot, .position = piece.start + i});
      }
      const auto first = projected_.begin() + offset(piece);
      projected.insert(projected.end(), first, first + piece.num_rows * shape_.row_dim());
    }
    layout::LaneControl control;
    control.num_rows = static_cast<std::uint32_t>(rows.size());
    control.num_spans = static_cast<std::uint32_t>(spans.size());
    layout::AbortState abort;
    abort.aborted = aborted ? 1 : 0;
    rows.resize(count(bucket_), {.slot = 0, .position = 7});
    spans.resize(count(bucket_), {.first_row = 0, .num_rows = 1, .start_position = 7, .slot = 0});
    projected.resize(count(bucket_ * shape_.row_dim()), bf16{0x7fc0});  // NaN
    const DeviceArray<layout::LaneControl> device_control(std::vector{control});
    const DeviceArray<layout::AbortState> device_abort(std::vector{abort});
    const DeviceArray<layout::LaneRow> device_rows(rows);
    const DeviceArray<layout::LaneSpan> device_spans(spans);
    const DeviceArray<bf16> device_projected(projected);
    DeviceArray<float> mixed(count(bucket_ * shape_.conv_dim()));
    DeviceArray<float> heads(count(bucket_ * shape_.value_dim()));
    DeviceArray<bf16> out(count(bucket_ * shape_.value_dim()));
    const Status status =
        kernels::cuda::launch_gated_delta_net({.shape = shape_,
                                               .max_rows = bucket_,
                                               .max_spans = bucket_,
                                               .control = device_control.data(),
                                               .abort = device_abort.data(),
                                               .rows = device_rows.data(),
                                               .spans = device_spans.data(),
                                               .projected = device_projected.data(),
                                               .conv_weight = device_conv_.data(),
                                               .a_log = device_a_log_.data(),
                                               .dt_bias = device_dt_bias_.data(),
                                               .norm_weight = device_norm_.data(),
                                               .conv_states = conv_states_.data(),
                                               .recurrent_states = recurrent_states_.data(),
                                               .mixed = mixed.data(),
                                               .heads = heads.data(),
                                               .out = out.data()},
                                              nullptr);
    EXPECT_TRUE(status.is_ok()) << status.message();
    const auto values = to_floats(out.get());
    std::vector<std::vector<float>> outs;
    for (std::size_t i = 0; i < pieces.size(); ++i) {
      const auto first = values.begin() + spans[i].first_row * shape_.value_dim();
      outs.emplace_back(first, first + spans[i].num_rows * shape_.value_dim());
    }
    const std::size_t used = control.num_rows * count(shape_.value_dim());
    for (std::size_t i = aborted ? 0 : used; i < values.size(); ++i) {
      EXPECT_TRUE(std::isnan(values[i])) << "written outside the rows: " << i;
    }
    return outs;
  }

  /// The whole sequence by the reference.
  std::vector<float> expected(SlotId slot) const {
    std::vector<float> conv_state(count(shape_.conv_state_floats()));
    std::vector<float> recurrent(count(shape_.recurrent_state_floats()));
    const auto first = projected_.begin() + offset({.slot = slot});
    std::vector<float> projected = to_floats({first, first + kLength * shape_.row_dim()});
    std::vector<float> out(count(kLength * shape_.value_dim()));
    const kernels::GatedDeltaNetSpan span{.first_row = 0,
                                          .num_rows = kLength,
                                          .begins = true,
                                          .conv_state = conv_state.data(),
                                          .recurrent_state = recurrent.data()};
    kernels::reference_gated_delta_net({.shape = shape_,
                                        .projected = projected.data(),
                                        .conv_weight = conv_weight_.data(),
                                        .a_log = a_log_.data(),
                                        .dt_bias = dt_bias_.data(),
                                        .norm_weight = norm_weight_.data(),
                                        .spans = {&span, 1},
                                        .out = out.data()});
    return out;
  }

  std::vector<float> states() const {
    auto all = conv_states_.get();
    const auto recurrent = recurrent_states_.get();
    all.insert(all.end(), recurrent.begin(), recurrent.end());
    return all;
  }

 private:
  static std::size_t count(std::int64_t n) { return static_cast<std::size_t>(n); }
  std::int64_t offset(const Piece& piece) const {
    return (piece.slot * kLength + piece.start) * shape_.row_dim();
  }

  GatedDeltaNetShape shape_;
  std::int64_t bucket_;
  std::vector<bf16> projected_;
  std::vector<float> conv_weight_, a_log_, dt_bias_, norm_weight_;
  DeviceArray<float> device_conv_, device_a_log_, device_dt_bias_, device_norm_;
  DeviceArray<float> conv_states_, recurrent_states_;
};

const std::vector<GatedDeltaNetShape> kShapes = {
    {.num_k_heads = 16, .num_v_heads = 32, .k_head_dim = 128, .v_head_dim = 128},
    {.num_k_heads = 2, .num_v_heads = 2, .k_head_dim = 64, .v_head_dim = 32, .conv_kernel = 2},
    {.num_k_heads = 1, .num_v_heads = 3, .k_head_dim = 256, .v_head_dim = 96, .conv_kernel = 8},
};

TEST(GatedDeltaNetCudaTest, EqualsTheReferenceHoweverThePromptIsCut) {
  for (const GatedDeltaNetShape& shape : kShapes) {
    Problem whole(shape, kLargeBucket);
    const auto outs = whole.run({{.slot = 2, .start = 0, .num_rows = Problem::kLength}});
    const auto expected = whole.expected(2);
    EXPECT_LT(relative_error(outs[0], expected), 6e-3) << "bf16 outputs";

    for (const std::int64_t bucket : {kBucket, kLargeBucket}) {
      Problem cut(shape, bucket);
      std::vector<float> joined;
      std::uint32_t start = 0;
      for (const std::uint32_t num_rows : {1, 1, 2, 9, 30, 1, 1, 15}) {
        // Beside another sequence, whose pieces are others.
        const auto parts = cut.run({{.slot = 0, .start = start / 2, .num_rows = 1},
                                    {.slot = 2, .start = start, .num_rows = num_rows}});
        joined.insert(joined.end(), parts[1].begin(), parts[1].end());
        start += num_rows;
      }
      ASSERT_EQ(start, Problem::kLength);
      EXPECT_EQ(joined, outs[0]) << "bit for bit";
    }
  }
}

TEST(GatedDeltaNetCudaTest, SequencesBeginAnywhereInABatchAndDisturbNobody) {
  const GatedDeltaNetShape shape = kShapes[0];
  Problem problem(shape, kLargeBucket);
  problem.run({{.slot = 3, .start = 0, .num_rows = 20}});
  // Slot 1 begins behind slot 3's rows; slot 0 has never been anything but NaN.
  const auto outs = problem.run({{.slot = 3, .start = 20, .num_rows = 1},
                                 {.slot = 1, .start = 0, .num_rows = Problem::kLength},
                                 {.slot = 0, .start = 0, .num_rows = 3}});
  EXPECT_LT(relative_error(outs[1], problem.expected(1)), 6e-3);
  const auto of_3 = problem.expected(3);
  const auto first = of_3.begin() + 20 * shape.value_dim();
  EXPECT_LT(relative_error(outs[0], {first, first + shape.value_dim()}), 6e-3);
  const auto of_0 = problem.expected(0);
  EXPECT_LT(relative_error(outs[2], {of_0.begin(), of_0.begin() + 3 * shape.value_dim()}), 6e-3);
}

TEST(GatedDeltaNetCudaTest, AnAbortedEpochChangesNoState) {
  Problem problem(kShapes[1]);
  problem.run({{.slot = 0, .start = 0, .num_rows = 4},
               {.slot = 1, .start = 0, .num_rows = 4},
               {.slot = 2, .start = 0, .num_rows = 4},
               {.slot = 3, .start = 0, .num_rows = 4}});
  const auto before = problem.states();
  problem.run({{.slot = 0, .start = 4, .num_rows = 5}}, /*aborted=*/true);
  EXPECT_EQ(problem.states(), before);
}

TEST(GatedDeltaNetCudaTest, RefusesShapesWithoutAKernel) {
  for (const GatedDeltaNetShape& shape : {
           GatedDeltaNetShape{
               .num_k_heads = 1, .num_v_heads = 1, .k_head_dim = 96, .v_head_dim = 32},
           GatedDeltaNetShape{
               .num_k_heads = 1, .num_v_heads = 1, .k_head_dim = 64, .v_head_dim = 48},
           GatedDeltaNetShape{
               .num_k_heads = 2, .num_v_heads = 3, .k_head_dim = 64, .v_head_dim = 32},
           GatedDeltaNetShape{
               .num_k_heads = 1, .num_v_heads = 1, .k_head_dim = 64, .v_head_dim = 288},
       }) {
    EXPECT_FALSE(kernels::cuda::is_supported(shape));
    EXPECT_EQ(kernels::cuda::launch_gated_delta_net({.shape = shape}, nullptr).code(),
              StatusCode::kInvalidArgument);
  }
}

}  // namespace
}  // namespace fastfd::testing
