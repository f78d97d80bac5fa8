#include <algorithm>
#include <atomic>
#include <bit>
#include <limits>
#include <numeric>

#include "kernels/attention/op.h"
#include "kernels_support.h"

namespace fastfd::kernels::testing {
namespace {

class AttentionTest : public KernelTest {};
INSTANTIATE_TEST_SUITE_P(AllBackends, AttentionTest, ::testing::ValuesIn(backends()), backend_name);

struct Shape {
  std::int64_t num_q_heads;
  std::int64_t num_kv_heads;
  std::int64_t head_dim;
  std::int64_t page_size;
  DType dtype = DType::kBFloat16;
  std::int64_t window = 0;
  bool has_sinks = false;

  std::int64_t row_dim() const { return (num_q_heads + 2 * num_kv_heads) * head_dim; }
  std::int64_t out_dim() const { return num_q_heads * head_dim; }
};

/// A KV cache and sequences in it whose pages are scattered.
class Cache {
 public:
  Cache(const Shape& shape, std::int64_t num_pages)
      : shape_(shape),
        num_pages_(num_pages),
        keys_(num_bytes()),
        values_(num_bytes()),
        free_(static_cast<std::size_t>(num_pages)) {
    // What no sequence has written must not be read into any result.
    std::fill_n(keys_.as<std::uint8_t>(), keys_.num_bytes(), std::uint8_t{0xff});
    std::fill_n(values_.as<std::uint8_t>(), values_.num_bytes(), std::uint8_t{0xff});
    std::iota(free_.begin(), free_.end(), PageId{0});
    std::shuffle(free_.begin(), free_.end(), std::mt19937(99));
  }

  std::vector<PageId> take_pages(std::int64_t num_tokens) {
    std::vector<PageId> pages;
    for (std::int64_t t = 0; t < num_tokens; t += shape_.page_size) {
      pages.push_back(free_.back());
      free_.pop_back();
    }
    return pages;
  }

  KvPool pool() {
    return {.keys = keys_.data(),
            .values = values_.data(),
            .dtype = shape_.dtype,
            .num_pages = num_pages_,
            .page_size = shape_.page_size,
            .num_kv_heads = shape_.num_kv_heads,
            .head_dim = shape_.head_dim};
  }

 private:
  std::size_t num_bytes() const {
    return static_cast<std::size_t>(num_pages_ * shape_.num_kv_heads * shape_.page_size *
                                    shape_.head_dim) *
           dtype_bytes(shape_.dtype);
  }

  Shape shape_;
  std::int64_t num_pages_;
  device::HostBuffer keys_;
  device::HostBuffer values_;
  std::vector<PageId> free_;
};

/// Of up to 20 query heads.
const std::vector<float>& sinks() {
  static const std::vector<float> values = random_floats(20, 20, 2.0F);
  return values;
}

PagedAttentionParams make_params(const Shape& shape, Cache& cache, const std::vector<float>& qkv,
                                 std::span<const AttentionSpan> spans, std::vector<float>& out) {
  return {.num_q_heads = shape.num_q_heads,
          .qkv = qkv.data(),
          .pool = cache.pool(),
          .spans = spans,
          .out = out.data(),
          .scale = 1.0F / std::sqrt(static_cast<float>(shape.head_dim)),
          .window = shape.window,
          .sinks = shape.has_sinks ? sinks().data() : nullptr};
}

/// Runs a whole sequence in pieces of the given lengths; returns out of all its rows.
std::vector<float> run_in_pieces(const Shape& shape, const std::vector<float>& qkv,
                                 const std::vector<std::int64_t>& pieces,
                                 const device::CpuStream* stream) {
  const std::int64_t num_rows = std::accumulate(pieces.begin(), pieces.end(), std::int64_t{0});
  Cache cache(shape, num_rows / shape.page_size + 3);
  const auto pages = cache.take_pages(num_rows);
  std::vector<float> out(static_cast<std::size_t>(num_rows * shape.out_dim()));
  std::int64_t position = 0;
  for (const std::int64_t rows : pieces) {
    const AttentionSpan span{
        .first_row = position, .num_rows = rows, .start_position = position, .pages = pages.data()};
    const auto params = make_params(shape, cache, qkv, {&span, 1}, out);
    if (stream == nullptr) {
      reference_paged_attention(params);
    } else {
      EXPECT_TRUE(launch_paged_attention(params, *stream).is_ok());
    }
    position += rows;
  }
  return out;
}

std::string describe(const Shape& shape) {
  return std::to_string(shape.num_q_heads) + " query heads, " + std::to_string(shape.num_kv_heads) +
         " KV heads of " + std::to_string(shape.head_dim) + ", pages of " +
         std::to_string(shape.page_size) + " " + to_string(shape.dtype) + ", window " +
         std::to_string(shape.window) + (shape.has_sinks ? ", sinks" : "");
}

TEST_P(AttentionTest, EqualsTheReference) {
  const std::vector<Shape> shapes = {{4, 2, 64, 16},
                                     {4, 2, 64, 1},
                                     {8, 1, 128, 64},
                                     {3, 3, 96, 4},
                                     {5, 1, 40, 2},
                                     {20, 1, 64, 8},
                                     {7, 7, 1, 16},
                                     {2, 1, 17, 32},
                                     {6, 2, 256, 16},
                                     {4, 2, 64, 16, DType::kFloat32},
                                     {4, 1, 50, 8, DType::kFloat32},
                                     {4, 2, 64, 16, DType::kBFloat16, 1},
                                     {16, 2, 64, 16, DType::kBFloat16, 24},
                                     {5, 1, 40, 2, DType::kBFloat16, 64},
                                     {20, 1, 64, 8, DType::kFloat32, 65, true},
                                     {4, 1, 50, 8, DType::kFloat32, 3, true},
                                     {6, 2, 64, 16, DType::kBFloat16, 1000, true},
                                     {4, 2, 128, 16, DType::kBFloat16, 0, true}};
  for (const Shape& shape : shapes) {
    for (const std::int64_t num_rows : {1, 2, 63, 64, 65, 150}) {
      const auto qkv = random_floats(static_cast<std::size_t>(num_rows * shape.row_dim()), 21);
      const auto expected = run_in_pieces(shape, qkv, {num_rows}, nullptr);
      const auto actual = run_in_pieces(shape, qkv, {num_rows}, &stream());
      expect_near(actual, expected, 1e-5F, describe(shape));
    }
  }
}

TEST_P(AttentionTest, RowsDoNotDependOnThePiecesOfThePrompt) {
  for (const Shape& shape :
       {Shape{4, 2, 64, 16}, Shape{8, 1, 128, 1}, Shape{3, 3, 40, 64}, Shape{20, 1, 64, 4},
        Shape{4, 2, 64, 16, DType::kFloat32}, Shape{16, 1, 64, 4, DType::kBFloat16, 70, true},
        Shape{6, 2, 64, 16, DType::kFloat32, 5}, Shape{3, 1, 40, 8, DType::kBFloat16, 1, true}}) {
    const std::int64_t num_rows = 201;
    const auto qkv = random_floats(static_cast<std::size_t>(num_rows * shape.row_dim()), 22);
    const auto whole = run_in_pieces(shape, qkv, {num_rows}, &stream());
    const std::vector<std::vector<std::int64_t>> cuts = {
        {1, 200},
        {64, 64, 73},
        {7, 57, 1, 1, 63, 72},
        {199, 1, 1},
        std::vector<std::int64_t>(static_cast<std::size_t>(num_rows), 1)};
    for (const auto& pieces : cuts) {
      const auto cut = run_in_pieces(shape, qkv, pieces, &stream());
      ASSERT_TRUE(same_bits(cut.data(), whole.data(), whole.size()))
          << describe(shape) << ", " << pieces.size() << " pieces";
    }
  }
}

TEST_P(AttentionTest, PageSizeDoesNotMatter) {
  const std::int64_t num_rows = 130;
  Shape shape{4, 2, 64, 1};
  const auto qkv = random_floats(static_cast<std::size_t>(num_rows * shape.row_dim()), 23);
  const auto expected = run_in_pieces(shape, qkv, {num_rows}, &stream());
  for (shape.page_size = 2; shape.page_size <= 64; shape.page_size *= 2) {
    const auto actual = run_in_pieces(shape, qkv, {100, 29, 1}, &stream());
    EXPECT_TRUE(same_bits(actual.data(), expected.data(), expected.size())) << shape.page_size;
  }
}

/// Sequences of different lengths in one ragged launch against each alone: prefill pieces, decode
/// rows and continued prefills, in an order of rows that is not the order of spans.
TEST_P(AttentionTest, SequencesDoNotDependOnEachOther) {
  const Shape shape{4, 2, 64, 8};
  const std::vector<std::int64_t> lengths = {1, 90, 17, 64, 257, 33};
  const std::vector<std::int64_t> last_piece = {1, 90, 1, 10, 1, 2};
  std::vector<std::vector<float>> alone;
  std::vector<std::vector<float>> inputs;
  for (std::size_t i = 0; i < lengths.size(); ++i) {
    inputs.push_back(random_floats(static_cast<std::size_t>(lengths[i] * shape.row_dim()),
                                   static_cast<std::uint32_t>(30 + i)));
    const std::int64_t first = lengths[i] - last_piece[i];
    alone.push_back(run_in_pieces(shape, inputs[i],
                                  first > 0 ? std::vector<std::int64_t>{first, last_piece[i]}
                                            : std::vector<std::int64_t>{lengths[i]},
                                  &stream()));
  }

  Cache cache(shape, 100);
  std::vector<std::vector<PageId>> pages;
  std::vector<AttentionSpan> spans(lengths.size());
  std::vector<float> qkv;
  for (std::size_t i = 0; i < lengths.size(); ++i) {
    pages.push_back(cache.take_pages(lengths[i]));
    const std::int64_t first = lengths[i] - last_piece[i];
    if (first > 0) {
      std::vector<float> out(static_cast<std::size_t>(first * shape.out_dim()));
      const AttentionSpan span{.num_rows = first, .pages = pages[i].data()};
      ASSERT_TRUE(
          launch_paged_attention(make_params(shape, cache, inputs[i], {&span, 1}, out), stream())
              .is_ok());
    }
    AttentionSpan& span = spans[lengths.size() - 1 - i];
    span = {.first_row = static_cast<std::int64_t>(qkv.size()) / shape.row_dim(),
            .num_rows = last_piece[i],
            .start_position = first,
            .pages = pages[i].data()};
    qkv.insert(qkv.end(), inputs[i].begin() + first * shape.row_dim(), inputs[i].end());
  }
  std::vector<float> out(qkv.size() / static_cast<std::size_t>(shape.row_dim()) *
                         static_cast<std::size_t>(shape.out_dim()));
  ASSERT_TRUE(launch_paged_attention(make_params(shape, cache, qkv, spans, out), stream()).is_ok());
  const float* row = out.data();
  for (std::size_t i = 0; i < lengths.size(); ++i) {
    const auto count = static_cast<std::size_t>(last_piece[i] * shape.out_dim());
    EXPECT_TRUE(same_bits(row, alone[i].data() + alone[i].size() - count, count)) << i;
    row += count;
  }
}

TEST_P(AttentionTest, ThreadsDoNotMatter) {
  const Shape shape{8, 2, 64, 16};
  const std::int64_t num_rows = 300;
  const auto qkv = random_floats(static_cast<std::size_t>(num_rows * shape.row_dim()), 24);
  const TestStream alone(stream().isa, 1);
  EXPECT_EQ(run_in_pieces(shape, qkv, {num_rows}, &stream()),
            run_in_pieces(shape, qkv, {num_rows}, &alone.stream));
}

TEST_P(AttentionTest, LaterTokensOfAPieceNeverReachEarlierRows) {
  const Shape shape{4, 2, 64, 16};
  const std::int64_t num_rows = 40;
  auto qkv = random_floats(static_cast<std::size_t>(num_rows * shape.row_dim()), 25);
  const auto clean = run_in_pieces(shape, qkv, {num_rows}, &stream());
  // The key and value of row 20 turn to NaN and infinity.
  float* row = qkv.data() + 20 * shape.row_dim() + shape.out_dim();
  row[3] = std::numeric_limits<float>::quiet_NaN();
  row[2 * 64 + 5] = std::numeric_limits<float>::infinity();
  const auto dirty = run_in_pieces(shape, qkv, {num_rows}, &stream());
  const auto before = static_cast<std::size_t>(20 * shape.out_dim());
  EXPECT_TRUE(same_bits(clean.data(), dirty.data(), before));
  EXPECT_TRUE(std::isnan(dirty[before]));
}

TEST_P(AttentionTest, TokensBeforeTheWindowNeverReachARow) {
  Shape shape{16, 2, 64, 16};
  shape.window = 10;
  const std::int64_t num_rows = 150;
  auto qkv = random_floats(static_cast<std::size_t>(num_rows * shape.row_dim()), 28);
  const auto clean = run_in_pieces(shape, qkv, {num_rows}, &stream());
  // Key and value of row 70 turn to NaN: rows 70 .. 79 see them.
  float* row = qkv.data() + 70 * shape.row_dim() + shape.out_dim();
  std::fill_n(row, 2 * shape.num_kv_heads * shape.head_dim,
              std::numeric_limits<float>::quiet_NaN());
  const auto dirty = run_in_pieces(shape, qkv, {num_rows}, &stream());
  for (std::int64_t i = 0; i < num_rows; ++i) {
    const auto at = static_cast<std::size_t>(i * shape.out_dim());
    const auto count = static_cast<std::size_t>(shape.out_dim());
    if (i >= 70 && i < 80) {
      EXPECT_TRUE(std::isnan(dirty[at])) << i;
    } else {
      EXPECT_TRUE(same_bits(&clean[at], &dirty[at], count)) << i;
    }
  }
}

TEST_P(AttentionTest, ASinkLargerThanAnyScoreTakesAll) {
  Shape shape{2, 1, 64, 16};
  const std::int64_t num_rows = 3;
  const auto qkv = random_floats(static_cast<std::size_t>(num_rows * shape.row_dim()), 29);
  Cache cache(shape, 2);
  const auto pages = cache.take_pages(num_rows);
  const AttentionSpan span{.num_rows = num_rows, .pages = pages.data()};
  std::vector<float> out(static_cast<std::size_t>(num_rows * shape.out_dim()));
  auto params = make_params(shape, cache, qkv, {&span, 1}, out);
  const std::vector<float> large = {200.0F, -200.0F};  // of the second head it takes nothing
  params.sinks = large.data();
  ASSERT_TRUE(launch_paged_attention(params, stream()).is_ok());
  const auto without = run_in_pieces(shape, qkv, {num_rows}, &stream());
  for (std::size_t i = 0; i < out.size(); ++i) {
    const bool is_first_head = i / 64 % 2 == 0;
    ASSERT_NEAR(out[i], is_first_head ? 0.0F : without[i], 1e-6F) << i;
  }
}

TEST_P(AttentionTest, LargeScoresDoNotOverflow) {
  const Shape shape{1, 1, 64, 16, DType::kFloat32};
  const std::int64_t num_rows = 70;
  const auto qkv = random_floats(static_cast<std::size_t>(num_rows * shape.row_dim()), 26, 30.0F);
  expect_near(run_in_pieces(shape, qkv, {num_rows}, &stream()),
              run_in_pieces(shape, qkv, {num_rows}, nullptr), 1e-4F, "large scores");
}

TEST_P(AttentionTest, AbortEndsTheLaunch) {
  const Shape shape{4, 2, 64, 16};
  const auto qkv = random_floats(static_cast<std::size_t>(shape.row_dim()), 27);
  Cache cache(shape, 2);
  const auto pages = cache.take_pages(1);
  const AttentionSpan span{.num_rows = 1, .pages = pages.data()};
  std::vector<float> out(static_cast<std::size_t>(shape.out_dim()), -7.0F);
  auto params = make_params(shape, cache, qkv, {&span, 1}, out);
  std::atomic<bool> abort{true};
  params.abort = &abort;
  EXPECT_EQ(launch_paged_attention(params, stream()).code(), StatusCode::kAborted);
  EXPECT_EQ(out, std::vector<float>(out.size(), -7.0F));
  abort = false;
  EXPECT_TRUE(launch_paged_attention(params, stream()).is_ok());
}

TEST_P(AttentionTest, NoSpansAreLegal) {
  const Shape shape{4, 2, 64, 16};
  Cache cache(shape, 1);
  std::vector<float> none;
  EXPECT_TRUE(launch_paged_attention(make_params(shape, cache, none, {}, none), stream()).is_ok());
}

TEST(AttentionArgumentsTest, ImpossibleShapesAreRefused) {
  const Shape shape{4, 2, 8, 16};
  Cache cache(shape, 2);
  std::vector<float> qkv(static_cast<std::size_t>(shape.row_dim()));
  std::vector<float> out(static_cast<std::size_t>(shape.out_dim()));
  const PageId outside = 2;
  const AttentionSpan span{.num_rows = 1, .pages = &outside};
  auto params = make_params(shape, cache, qkv, {&span, 1}, out);
  EXPECT_EQ(launch_paged_attention(params, {}).code(), StatusCode::kInvalidArgument);
  params.spans = {};
  EXPECT_TRUE(launch_paged_attention(params, {}).is_ok());
  params.num_q_heads = 3;
  EXPECT_EQ(launch_paged_attention(params, {}).code(), StatusCode::kInvalidArgument);
  params.num_q_heads = 4;
  params.pool.page_size = 12;
  EXPECT_EQ(launch_paged_attention(params, {}).code(), StatusCode::kInvalidArgument);
  params.pool.page_size = 16;
  params.pool.dtype = DType::kFloat16;
  EXPECT_EQ(launch_paged_attention(params, {}).code(), StatusCode::kInvalidArgument);
  params.pool.dtype = DType::kBFloat16;
  params.window = -1;
  EXPECT_EQ(launch_paged_attention(params, {}).code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace fastfd::kernels::testing
