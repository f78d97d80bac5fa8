#include <algorithm>
#include <atomic>
#include <bit>
#include <limits>
#include <map>
#include <numeric>
#include <string>

#include "kernels/latent_attention/op.h"
#include "kernels_support.h"

namespace fastfd::kernels::testing {
namespace {

class LatentAttentionTest : public KernelTest {};
INSTANTIATE_TEST_SUITE_P(AllBackends, LatentAttentionTest, ::testing::ValuesIn(backends()),
                         backend_name);

struct Shape {
  std::int64_t num_heads;
  std::int64_t latent_dim;
  std::int64_t rope_dim;
  std::int64_t page_size;
  DType dtype = DType::kBFloat16;

  std::int64_t row_dim() const { return latent_dim + rope_dim; }
  std::int64_t query_dim() const { return num_heads * row_dim(); }
  std::int64_t out_dim() const { return num_heads * latent_dim; }
};

std::string describe(const Shape& shape) {
  return std::to_string(shape.num_heads) + " heads over " + std::to_string(shape.latent_dim) +
         " + " + std::to_string(shape.rope_dim) + ", pages of " + std::to_string(shape.page_size) +
         " " + to_string(shape.dtype);
}

const std::vector<Shape> kShapes = {{16, 512, 64, 16},
                                    {20, 512, 64, 64},
                                    {4, 64, 32, 16},
                                    {3, 40, 8, 1},
                                    {1, 17, 6, 4},
                                    {5, 24, 40, 8},  // values end in the middle of a chunk
                                    {33, 96, 32, 2},
                                    {16, 512, 64, 16, DType::kFloat32},
                                    {7, 50, 10, 8, DType::kFloat32}};

/// Latent pages and sequences in them whose pages are scattered.
class Cache {
 public:
  Cache(const Shape& shape, std::int64_t num_pages)
      : shape_(shape),
        num_pages_(num_pages),
        rows_(static_cast<std::size_t>(num_pages * shape.page_size * shape.row_dim()) *
              dtype_bytes(shape.dtype)),
        free_(static_cast<std::size_t>(num_pages)) {
    // What no sequence has written must not be read into any result.
    std::fill_n(rows_.as<std::uint8_t>(), rows_.num_bytes(), std::uint8_t{0xff});
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

  LatentPool pool() {
    return {.rows = rows_.data(),
            .dtype = shape_.dtype,
            .num_pages = num_pages_,
            .page_size = shape_.page_size,
            .latent_dim = shape_.latent_dim,
            .rope_dim = shape_.rope_dim};
  }

 private:
  Shape shape_;
  std::int64_t num_pages_;
  device::HostBuffer rows_;
  std::vector<PageId> free_;
};

/// Queries and latent rows of one sequence.
struct Input {
  Input(const Shape& shape, std::int64_t num_rows, std::uint32_t seed)
      : queries(random_floats(static_cast<std::size_t>(num_rows * shape.query_dim()), seed)),
        latents(random_floats(static_cast<std::size_t>(num_rows * shape.row_dim()), seed + 1)) {}
  Input() = default;
  std::vector<float> queries;
  std::vector<float> latents;
};

LatentAttentionParams make_params(const Shape& shape, Cache& cache, const Input& input,
                                  std::span<const AttentionSpan> spans, std::vector<float>& out) {
  return {.num_heads = shape.num_heads,
          .queries = input.queries.data(),
          .latents = input.latents.data(),
          .pool = cache.pool(),
          .spans = spans,
          .out = out.data(),
          .scale = 1.0F / std::sqrt(static_cast<float>(shape.row_dim()))};
}

/// Runs a whole sequence in pieces of the given lengths; returns out of all its rows.
std::vector<float> run_in_pieces(const Shape& shape, const Input& input,
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
    const auto params = make_params(shape, cache, input, {&span, 1}, out);
    if (stream == nullptr) {
      reference_latent_attention(params);
    } else {
      EXPECT_TRUE(launch_latent_attention(params, *stream).is_ok());
    }
    position += rows;
  }
  return out;
}

/// What the reference makes of a prompt in one piece; once for all backends, since it takes longer
/// than all of them together.
const std::vector<float>& reference_of(const Shape& shape, const Input& input,
                                       std::int64_t num_rows) {
  static std::map<std::string, std::vector<float>> results;
  auto& result = results[describe(shape) + ", rows " + std::to_string(num_rows)];
  if (result.empty()) {
    result = run_in_pieces(shape, input, {num_rows}, nullptr);
  }
  return result;
}

TEST_P(LatentAttentionTest, EqualsTheReference) {
  for (const Shape& shape : kShapes) {
    for (const std::int64_t num_rows : {1, 2, 64, 65, 130}) {
      const Input input(shape, num_rows, 21);
      expect_near(run_in_pieces(shape, input, {num_rows}, &stream()),
                  reference_of(shape, input, num_rows), 2e-5F, describe(shape));
    }
  }
}

TEST_P(LatentAttentionTest, RowsDoNotDependOnThePiecesOfThePromptOrOnPages) {
  for (Shape shape : kShapes) {
    const std::int64_t num_rows = 141;
    const Input input(shape, num_rows, 22);
    const auto whole = run_in_pieces(shape, input, {num_rows}, &stream());
    for (const auto& pieces : std::vector<std::vector<std::int64_t>>{
             {1, 140},
             {64, 64, 13},
             {7, 57, 1, 1, 63, 12},
             std::vector<std::int64_t>(static_cast<std::size_t>(num_rows), 1)}) {
      const auto cut = run_in_pieces(shape, input, pieces, &stream());
      ASSERT_TRUE(same_bits(cut.data(), whole.data(), whole.size()))
          << describe(shape) << ", " << pieces.size() << " pieces";
    }
    shape.page_size = shape.page_size == 16 ? 4 : 16;
    const auto other = run_in_pieces(shape, input, {100, 41}, &stream());
    ASSERT_TRUE(same_bits(other.data(), whole.data(), whole.size())) << describe(shape);
  }
}

/// A ragged launch of a decode row, a whole prompt and a continued one, in an order of rows that is
/// not the order of spans, against each sequence alone.
TEST_P(LatentAttentionTest, SequencesDoNotDependOnEachOther) {
  const Shape shape{6, 64, 32, 8};
  const std::vector<std::int64_t> lengths = {90, 64, 257, 33};
  const std::vector<std::int64_t> last_piece = {90, 10, 1, 2};
  Cache cache(shape, 100);
  Input together;
  std::vector<std::vector<PageId>> pages;
  std::vector<std::vector<float>> alone;
  std::vector<AttentionSpan> spans(lengths.size());
  std::int64_t num_rows = 0;
  for (std::size_t i = 0; i < lengths.size(); ++i) {
    const Input input(shape, lengths[i], static_cast<std::uint32_t>(30 + 2 * i));
    alone.push_back(run_in_pieces(shape, input, {lengths[i]}, &stream()));
    pages.push_back(cache.take_pages(lengths[i]));
    const std::int64_t first = lengths[i] - last_piece[i];
    if (first > 0) {
      std::vector<float> out(static_cast<std::size_t>(first * shape.out_dim()));
      const AttentionSpan span{.num_rows = first, .pages = pages[i].data()};
      ASSERT_TRUE(
          launch_latent_attention(make_params(shape, cache, input, {&span, 1}, out), stream())
              .is_ok());
    }
    spans[lengths.size() - 1 - i] = {.first_row = num_rows,
                                     .num_rows = last_piece[i],
                                     .start_position = first,
                                     .pages = pages[i].data()};
    num_rows += last_piece[i];
    together.queries.insert(together.queries.end(),
                            input.queries.begin() + first * shape.query_dim(), input.queries.end());
    together.latents.insert(together.latents.end(), input.latents.begin() + first * shape.row_dim(),
                            input.latents.end());
  }
  std::vector<float> out(static_cast<std::size_t>(num_rows * shape.out_dim()));
  ASSERT_TRUE(
      launch_latent_attention(make_params(shape, cache, together, spans, out), stream()).is_ok());
  const float* row = out.data();
  for (std::size_t i = 0; i < lengths.size(); ++i) {
    const auto count = static_cast<std::size_t>(last_piece[i] * shape.out_dim());
    EXPECT_TRUE(same_bits(row, alone[i].data() + alone[i].size() - count, count)) << i;
    row += count;
  }
}

TEST_P(LatentAttentionTest, LaterTokensOfAPieceNeverReachEarlierRows) {
  const Shape shape{4, 64, 32, 16};
  Input input(shape, 40, 25);
  const auto clean = run_in_pieces(shape, input, {40}, &stream());
  input.latents[static_cast<std::size_t>(20 * shape.row_dim() + 3)] =
      std::numeric_limits<float>::quiet_NaN();
  const auto dirty = run_in_pieces(shape, input, {40}, &stream());
  const auto before = static_cast<std::size_t>(20 * shape.out_dim());
  EXPECT_TRUE(same_bits(clean.data(), dirty.data(), before));
  EXPECT_TRUE(std::isnan(dirty[before]));
}

TEST_P(LatentAttentionTest, AbortEndsTheLaunch) {
  const Shape shape{4, 64, 32, 16};
  const Input input(shape, 1, 27);
  Cache cache(shape, 2);
  const auto pages = cache.take_pages(1);
  const AttentionSpan span{.num_rows = 1, .pages = pages.data()};
  std::vector<float> out(static_cast<std::size_t>(shape.out_dim()), -7.0F);
  auto params = make_params(shape, cache, input, {&span, 1}, out);
  std::atomic<bool> abort{true};
  params.abort = &abort;
  EXPECT_EQ(launch_latent_attention(params, stream()).code(), StatusCode::kAborted);
  EXPECT_EQ(out, std::vector<float>(out.size(), -7.0F));
  abort = false;
  EXPECT_TRUE(launch_latent_attention(params, stream()).is_ok());
}

TEST(LatentAttentionArgumentsTest, ImpossibleShapesAreRefused) {
  const Shape shape{2, 8, 4, 16};
  Cache cache(shape, 2);
  const Input input(shape, 1, 28);
  std::vector<float> out(static_cast<std::size_t>(shape.out_dim()));
  const PageId outside = 2;
  const AttentionSpan span{.num_rows = 1, .pages = &outside};
  auto params = make_params(shape, cache, input, {&span, 1}, out);
  EXPECT_EQ(launch_latent_attention(params, {}).code(), StatusCode::kInvalidArgument);
  params.spans = {};
  EXPECT_TRUE(launch_latent_attention(params, {}).is_ok());
  params.num_heads = 0;
  EXPECT_EQ(launch_latent_attention(params, {}).code(), StatusCode::kInvalidArgument);
  params.num_heads = 2;
  params.pool.page_size = 12;
  EXPECT_EQ(launch_latent_attention(params, {}).code(), StatusCode::kInvalidArgument);
  params.pool.page_size = 16;
  params.pool.dtype = DType::kFloat16;
  EXPECT_EQ(launch_latent_attention(params, {}).code(), StatusCode::kInvalidArgument);
}

/// cos and sin of arbitrary angles: what they stand for is the rope table's business.
RopeTable make_table(std::int64_t max_positions, std::int64_t rotary_dim) {
  RopeTable table;
  table.max_positions = max_positions;
  table.rotary_dim = rotary_dim;
  table.cos = random_floats(static_cast<std::size_t>(max_positions * rotary_dim / 2), 50);
  table.sin = random_floats(static_cast<std::size_t>(max_positions * rotary_dim / 2), 51);
  return table;
}

TEST_P(LatentAttentionTest, RowsAreNormalisedAndRotatedAsInTheReference) {
  for (const auto& [num_heads, nope, latent, rotary] :
       {std::array<std::int64_t, 4>{16, 128, 512, 64}, {3, 24, 40, 8}, {1, 1, 17, 2}}) {
    const std::int64_t num_rows = 9;
    const RopeTable table = make_table(30, rotary);
    const std::int64_t stride = latent + rotary + 5;
    const auto q =
        random_floats(static_cast<std::size_t>(num_rows * num_heads * (nope + rotary)), 52);
    const auto kv = random_floats(static_cast<std::size_t>(num_rows * stride), 53);
    const auto weight = random_floats(static_cast<std::size_t>(latent), 54);
    const std::vector<std::int32_t> positions = {0, 29, 3, 3, 17, 1, 2, 11, 28};
    for (const bool interleaved : {true, false}) {
      const auto run = [&](bool reference) {
        const auto dim = static_cast<std::size_t>(latent + rotary);
        std::vector<float> latents(num_rows * dim);
        // The absorbed part of a query is another's to write.
        std::vector<float> queries(static_cast<std::size_t>(num_rows * num_heads) * dim, -3.0F);
        const LatentRowsParams params{.num_rows = num_rows,
                                      .num_heads = num_heads,
                                      .nope_dim = nope,
                                      .latent_dim = latent,
                                      .q = q.data(),
                                      .kv = kv.data(),
                                      .kv_stride = stride,
                                      .norm_weight = weight.data(),
                                      .positions = positions.data(),
                                      .table = &table,
                                      .interleaved = interleaved,
                                      .latents = latents.data(),
                                      .queries = queries.data()};
        if (reference) {
          reference_latent_rows(params);
        } else {
          EXPECT_TRUE(launch_latent_rows(params, stream()).is_ok());
        }
        latents.insert(latents.end(), queries.begin(), queries.end());
        return latents;
      };
      expect_near(run(false), run(true), 1e-5F, "rotary " + std::to_string(rotary));
    }
  }
}

TEST(LatentRowsTest, InterleavedPairsComeOutInHalves) {
  RopeTable table;
  table.max_positions = 1;
  table.rotary_dim = 4;
  table.cos = {1.0F, 0.0F};
  table.sin = {0.0F, 1.0F};
  const std::vector<float> q = {9.0F, 1.0F, 2.0F, 3.0F, 4.0F};
  const std::vector<float> kv = {2.0F, 5.0F, 6.0F, 7.0F, 8.0F};
  const float weight = 3.0F;
  const std::int32_t position = 0;
  std::vector<float> latents(5);
  std::vector<float> queries(5, -1.0F);
  LatentRowsParams params{.num_rows = 1,
                          .num_heads = 1,
                          .nope_dim = 1,
                          .latent_dim = 1,
                          .q = q.data(),
                          .kv = kv.data(),
                          .kv_stride = 5,
                          .norm_weight = &weight,
                          .positions = &position,
                          .table = &table,
                          .eps = 0.0F,
                          .latents = latents.data(),
                          .queries = queries.data()};
  ASSERT_TRUE(launch_latent_rows(params, {}).is_ok());
  // The pair (1, 2) stays, the pair (3, 4) turns by 90 degrees.
  EXPECT_EQ(queries, (std::vector<float>{-1.0F, 1.0F, -4.0F, 2.0F, 3.0F}));
  EXPECT_EQ(latents, (std::vector<float>{3.0F, 5.0F, -8.0F, 6.0F, 7.0F}));
  params.interleaved = false;
  ASSERT_TRUE(launch_latent_rows(params, {}).is_ok());
  EXPECT_EQ(queries, (std::vector<float>{-1.0F, 1.0F, -4.0F, 3.0F, 2.0F}));

  const std::int32_t outside = 1;
  params.positions = &outside;
  EXPECT_EQ(launch_latent_rows(params, {}).code(), StatusCode::kInvalidArgument);
  params.positions = &position;
  params.kv_stride = 4;
  EXPECT_EQ(launch_latent_rows(params, {}).code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace fastfd::kernels::testing
