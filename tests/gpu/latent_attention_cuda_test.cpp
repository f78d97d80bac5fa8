#include <algorithm>
#include <cmath>
#include <limits>

#include "attention_support.h"
#include "kernels/latent_attention/op.h"
#include "kernels/latent_attention/op_cuda.h"
#include "kernels/layout/lane_batch.h"
#include "kernels/layout/lane_control.h"

namespace fastfd::testing {
namespace {

using kernels::cuda::kLatentDim;
using kernels::cuda::kLatentRopeDim;
using kernels::cuda::kLatentRowDim;

constexpr std::int64_t kNumSms = 132;

struct Shape {
  std::int64_t num_heads;
  std::int64_t page_size;

  std::size_t query_dim() const { return static_cast<std::size_t>(num_heads * kLatentRowDim); }
  std::size_t out_dim() const { return static_cast<std::size_t>(num_heads * kLatentDim); }
};

/// Rows of a sequence that one launch computes.
struct Piece {
  std::int64_t slot;
  std::int64_t start;
  std::int64_t num_rows;
};

float score_scale() { return 1.0F / std::sqrt(192.0F); }

/// Sequences whose tokens are all in the pool, and queries for every position of each.
class World {
 public:
  World(const Shape& shape, std::vector<std::int64_t> lengths)
      : shape_(shape),
        lengths_(std::move(lengths)),
        max_context_(*std::max_element(lengths_.begin(), lengths_.end())),
        pages_(static_cast<std::int64_t>(lengths_.size()), max_context_, shape.page_size),
        queries_(to_bf16(random_floats(kQueryValues, 3))),
        pool_(pool_values()),
        device_pool_(to_bf16(pool_)),
        tables_(pages_.tables) {
    require_cuda(cudaSetDevice(0), "cudaSetDevice");
    EXPECT_TRUE(kernels::cuda::prepare_latent_attention().is_ok());
  }

  /// Results of the pieces' rows, one after another.
  std::vector<bf16> run(const std::vector<Piece>& pieces, std::int64_t row_split_limit = 8192,
                        bool aborted = false, int num_layers = 1) const {
    std::vector<layout::LaneSpan> spans;
    std::vector<bf16> q;
    for (const Piece& piece : pieces) {
      spans.push_back({.first_row = static_cast<std::uint32_t>(q.size() / shape_.query_dim()),
                       .num_rows = static_cast<std::uint32_t>(piece.num_rows),
                       .start_position = static_cast<std::uint32_t>(piece.start),
                       .slot = static_cast<SlotId>(piece.slot)});
      for (std::int64_t i = piece.start; i < piece.start + piece.num_rows; ++i) {
        append_query(piece.slot, i, q);
      }
    }
    layout::LaneControl control;
    control.num_rows = static_cast<std::uint32_t>(q.size() / shape_.query_dim());
    control.num_spans = static_cast<std::uint32_t>(spans.size());
    // The bucket is larger than what is in it.
    spans.resize(spans.size() + 3, {.first_row = 0, .num_rows = 1, .start_position = 0, .slot = 0});
    q.resize(q.size() + 2 * shape_.query_dim(), bf16{0x7fff});
    return launch(spans, q, control, row_split_limit, aborted, num_layers);
  }

  /// The same by the CPU's kernel, which is tested against the naive reference.
  std::vector<float> expected(const std::vector<Piece>& pieces) const {
    std::vector<float> pool = to_floats(to_bf16(pool_));
    std::vector<float> all;
    for (const Piece& piece : pieces) {
      std::vector<bf16> q;
      std::vector<float> latents;
      for (std::int64_t i = piece.start; i < piece.start + piece.num_rows; ++i) {
        append_query(piece.slot, i, q);
        const auto row = pool.begin() + static_cast<std::ptrdiff_t>(element(piece.slot, i));
        latents.insert(latents.end(), row, row + kLatentRowDim);
      }
      const std::vector<float> queries = to_floats(q);
      std::vector<float> out(static_cast<std::size_t>(piece.num_rows) * shape_.out_dim());
      const auto slot = static_cast<std::size_t>(piece.slot);
      const kernels::AttentionSpan span{
          .num_rows = piece.num_rows,
          .start_position = piece.start,
          .pages = &pages_.tables[slot * static_cast<std::size_t>(pages_.pages_per_slot)]};
      const Status status =
          kernels::launch_latent_attention({.num_heads = shape_.num_heads,
                                            .queries = queries.data(),
                                            .latents = latents.data(),
                                            .pool = {.rows = pool.data(),
                                                     .dtype = DType::kFloat32,
                                                     .num_pages = pages_.num_pages(),
                                                     .page_size = shape_.page_size,
                                                     .latent_dim = kLatentDim,
                                                     .rope_dim = kLatentRopeDim},
                                            .spans = {&span, 1},
                                            .out = out.data(),
                                            .scale = score_scale()},
                                           {.isa = device::detect_isa()});
      EXPECT_TRUE(status.is_ok()) << status.message();
      all.insert(all.end(), out.begin(), out.end());
    }
    return all;
  }

 private:
  static constexpr std::size_t kQueryValues = 1 << 20;

  /// Values of one block in another order for every position.
  void append_query(std::int64_t slot, std::int64_t position, std::vector<bf16>& q) const {
    const auto first = static_cast<std::size_t>(slot * 100'003 + position * 7'919);
    for (std::size_t i = 0; i < shape_.query_dim(); ++i) {
      q.push_back(queries_[(first + i * 5) % kQueryValues]);
    }
  }

  std::size_t element(std::int64_t slot, std::int64_t position) const {
    const std::int64_t page = pages_.tables[static_cast<std::size_t>(slot * pages_.pages_per_slot +
                                                                     position / shape_.page_size)];
    return static_cast<std::size_t>((page * shape_.page_size + position % shape_.page_size) *
                                    kLatentRowDim);
  }

  /// NaN where no sequence has a token.
  std::vector<float> pool_values() const {
    const auto count =
        static_cast<std::size_t>(pages_.num_pages() * shape_.page_size * kLatentRowDim);
    std::vector<float> pool(count, std::numeric_limits<float>::quiet_NaN());
    for (std::size_t slot = 0; slot < lengths_.size(); ++slot) {
      const auto random = random_floats(static_cast<std::size_t>(lengths_[slot] * kLatentRowDim),
                                        static_cast<std::uint32_t>(100 + slot));
      for (std::int64_t i = 0; i < lengths_[slot]; ++i) {
        std::copy_n(random.begin() + i * kLatentRowDim, kLatentRowDim,
                    pool.begin() +
                        static_cast<std::ptrdiff_t>(element(static_cast<std::int64_t>(slot), i)));
      }
    }
    return pool;
  }

  std::vector<bf16> launch(const std::vector<layout::LaneSpan>& spans, const std::vector<bf16>& q,
                           const layout::LaneControl& control, std::int64_t row_split_limit,
                           bool aborted, int num_layers) const {
    const auto max_rows = static_cast<std::int64_t>(q.size() / shape_.query_dim());
    auto workspace = kernels::cuda::AttentionWorkspace::of(
        kernels::cuda::latent_bucket(max_rows, static_cast<std::int64_t>(spans.size()),
                                     max_context_, shape_.num_heads),
        row_split_limit);
    DeviceArray<std::byte> workspace_bytes(workspace.num_bytes());
    workspace.data = workspace_bytes.data();
    layout::AbortState abort;
    abort.aborted = aborted ? 1 : 0;
    const DeviceArray<layout::AbortState> device_abort(std::vector{abort});
    const DeviceArray<layout::LaneControl> device_control(std::vector{control});
    const DeviceArray<layout::LaneSpan> device_spans(spans);
    const DeviceArray<bf16> device_q(q);
    DeviceArray<bf16> out(static_cast<std::size_t>(max_rows) * shape_.out_dim());
    EXPECT_TRUE(kernels::cuda::launch_attention_schedule({.workspace = workspace,
                                                          .control = device_control.data(),
                                                          .spans = device_spans.data()},
                                                         nullptr)
                    .is_ok());
    for (int layer = 0; layer < num_layers; ++layer) {
      const Status status = kernels::cuda::launch_latent_attention(
          {.workspace = workspace,
           .num_sms = kNumSms,
           .abort = device_abort.data(),
           .spans = device_spans.data(),
           .latents = {.rows = device_pool_.data(),
                       .page_size = shape_.page_size,
                       .page_tables = tables_.data(),
                       .pages_per_slot = pages_.pages_per_slot},
           .queries = device_q.data(),
           .out = out.data(),
           .scale = score_scale()},
          nullptr);
      EXPECT_TRUE(status.is_ok()) << status.message();
      if (layer + 1 < num_layers) {
        require_cuda(cudaMemsetAsync(out.data(), 0xff, out.num_bytes(), nullptr), "memset");
      }
    }
    auto rows = out.get();
    const std::size_t num_used = rows.size() - 2 * shape_.out_dim();
    EXPECT_TRUE(std::all_of(rows.begin() + static_cast<std::ptrdiff_t>(num_used), rows.end(),
                            [](bf16 value) { return value.bits == 0xffff; }))
        << "a row past the batch was written";
    rows.resize(num_used);
    return rows;
  }

  Shape shape_;
  std::vector<std::int64_t> lengths_;
  std::int64_t max_context_;
  ScatteredPages pages_;
  std::vector<bf16> queries_;  // [kQueryValues]
  std::vector<float> pool_;
  mutable DeviceArray<bf16> device_pool_;  // attention reads it, but writers share its struct
  DeviceArray<PageId> tables_;
};

std::string describe(const Shape& shape) {
  return std::to_string(shape.num_heads) + " heads, pages of " + std::to_string(shape.page_size);
}

/// DeepSeek-V2-Lite's heads and DeepSeek-V3's, and numbers that tiles of 64 queries don't divide.
const std::vector<Shape> kShapes = {{16, 16}, {20, 1}, {128, 64}, {5, 4}, {72, 2048}};

// First tokens, borders of tiles and splits, short pieces and long ones.
const std::vector<std::int64_t> kLengths = {1, 32, 1025, 1024, 300, 33, 90, 3000, 1100, 2050, 31};
const std::vector<Piece> kMix = {{0, 0, 1},    {1, 31, 1},    {2, 1024, 1}, {3, 1023, 1},
                                 {4, 262, 38}, {5, 0, 33},    {6, 87, 3},   {7, 2999, 1},
                                 {8, 980, 60}, {9, 2040, 10}, {10, 29, 2}};

TEST(LatentAttentionCudaTest, EqualsTheReferenceOnARaggedMix) {
  for (const Shape& shape : kShapes) {
    const World world(shape, kLengths);
    EXPECT_LT(relative_error(to_floats(world.run(kMix)), world.expected(kMix)), 5e-3)
        << describe(shape);
  }
}

// Each by itself, so that an error in one of few rows shows.
TEST(LatentAttentionCudaTest, EqualsTheReferenceAtEveryKindOfContext) {
  const Shape shape{16, 16};
  const World world(shape, {3000});
  for (const std::int64_t position : {0,   1,    7,    8,    15,   16,   30,   31,   32,   63,  64,
                                      500, 1022, 1023, 1024, 1025, 1055, 1056, 2047, 2048, 2999}) {
    const std::vector<Piece> piece = {{0, position, 1}};
    EXPECT_LT(relative_error(to_floats(world.run(piece)), world.expected(piece)), 5e-3)
        << "position " << position;
  }
}

bool same_bits(const std::vector<bf16>& a, const std::vector<bf16>& b) {
  return a.size() == b.size() && std::equal(a.begin(), a.end(), b.begin());
}

TEST(LatentAttentionCudaTest, ARowsBitsDependOnItsOwnSequenceOnly) {
  for (const Shape& shape : kShapes) {
    const World world(shape, kLengths);
    const auto together = world.run(kMix);
    auto row = together.begin();
    for (const Piece& piece : kMix) {
      const auto end = row + static_cast<std::ptrdiff_t>(static_cast<std::size_t>(piece.num_rows) *
                                                         shape.out_dim());
      const std::vector<bf16> among_others(row, end);
      row = end;
      EXPECT_TRUE(same_bits(among_others, world.run({piece})))
          << describe(shape) << ", slot " << piece.slot;
    }
    // Nothing fits into the workspace: every row is one block's.
    EXPECT_TRUE(same_bits(together, world.run(kMix, 0))) << describe(shape);
    EXPECT_TRUE(same_bits(together, world.run(kMix, 4))) << describe(shape);
    // The counters are ready again for the next layer.
    EXPECT_TRUE(same_bits(together, world.run(kMix, 8192, false, 3))) << describe(shape);
  }
}

TEST(LatentAttentionCudaTest, ARowsBitsDoNotDependOnThePiecesOfThePrompt) {
  for (const Shape& shape : {Shape{16, 16}, Shape{20, 64}, Shape{128, 16}}) {
    const World world(shape, {1060});
    // Of many heads, the rows around a split's border.
    const std::int64_t first = shape.num_heads > 64 ? 980 : 0;
    const auto whole = world.run({{0, first, 1060 - first}});
    for (const std::vector<std::int64_t>& cut : {std::vector<std::int64_t>{1, 1059},
                                                 {2, 1058},
                                                 {985, 38, 37},
                                                 {1000, 24, 1, 1, 2, 32},
                                                 {64, 64, 64, 64, 256, 18, 480, 13, 37},
                                                 {1023, 2, 35}}) {
      std::vector<bf16> pieces;
      std::int64_t position = 0;
      for (const std::int64_t num_rows : cut) {
        const std::int64_t begin = std::max(position, first);
        position += num_rows;
        if (begin < position) {
          const auto rows = world.run({{0, begin, position - begin}});
          pieces.insert(pieces.end(), rows.begin(), rows.end());
        }
      }
      EXPECT_TRUE(same_bits(whole, pieces)) << describe(shape) << ", " << cut.size() << " pieces";
    }
  }
}

// More items than blocks, of every length: the rings of shared memory go round many times.
TEST(LatentAttentionCudaTest, ManySequencesGiveWhatEachGivesAlone) {
  const Shape shape{128, 16};
  const World world(shape, std::vector<std::int64_t>(40, 40));
  std::vector<Piece> pieces;
  for (std::int64_t i = 0; i < 200; ++i) {
    pieces.push_back({i % 40, i % 37, 1 + i % 3});
  }
  const auto together = to_floats(world.run(pieces));
  EXPECT_LT(relative_error(together, world.expected(pieces)), 5e-3);
  for (int i = 0; i < 5; ++i) {
    EXPECT_EQ(together, to_floats(world.run(pieces)));
  }
}

TEST(LatentAttentionCudaTest, NoSpansAreLegal) {
  const World world({16, 16}, {10});
  EXPECT_TRUE(world.run({}).empty());
}

TEST(LatentAttentionCudaTest, AnAbortedEpochComputesNothing) {
  const World world({16, 16}, {10, 1300});
  for (const bf16 value : world.run({{0, 0, 10}, {1, 1299, 1}}, 8192, true)) {
    ASSERT_EQ(value.bits, 0xffff);
  }
}

TEST(LatentAttentionCudaTest, ImpossibleShapesAreRefused) {
  kernels::cuda::LatentAttentionParams params;
  params.workspace.bucket = kernels::cuda::latent_bucket(1, 1, 100, 16);
  params.num_sms = 1;
  params.latents = {.page_size = 12, .pages_per_slot = 1};
  const auto code = [&] { return kernels::cuda::launch_latent_attention(params, nullptr).code(); };
  EXPECT_EQ(code(), StatusCode::kInvalidArgument);
  params.latents.page_size = 16;
  params.num_sms = 0;
  EXPECT_EQ(code(), StatusCode::kInvalidArgument);
  params.num_sms = 1;
  params.workspace.bucket.num_q_heads = 0;
  EXPECT_EQ(code(), StatusCode::kInvalidArgument);
  params.workspace.bucket = {.num_q_heads = 8, .num_kv_heads = 2, .head_dim = 128};
  EXPECT_EQ(code(), StatusCode::kInvalidArgument);
}

/// launch_latent_rows on random projections.
class RowsRun {
 public:
  static constexpr std::int64_t kMaxPositions = 300;
  static constexpr std::int64_t kNopeDim = 128;

  RowsRun(const Shape& shape, bool interleaved)
      : shape_(shape),
        interleaved_(interleaved),
        pages_(3, kMaxPositions, shape.page_size),
        table_(kernels::RopeTable::make(kMaxPositions, {.rotary_dim = kLatentRopeDim})),
        rows_(make_rows()),
        q_(to_bf16(random_floats(rows_.size() * q_dim(), 5))),
        kv_(random_floats(rows_.size() * kLatentRowDim, 6)),
        norm_(random_floats(kLatentDim, 7)) {}

  struct Written {
    std::vector<bf16> queries;
    std::vector<bf16> pool;
  };

  /// The first `num_rows` of a larger bucket.
  Written run(std::int64_t num_rows, bool aborted = false) const {
    const auto max_rows = static_cast<std::int64_t>(rows_.size());
    layout::LaneControl control;
    control.num_rows = static_cast<std::uint32_t>(num_rows);
    layout::AbortState abort;
    abort.aborted = aborted ? 1 : 0;
    const DeviceArray<layout::LaneControl> device_control(std::vector{control});
    const DeviceArray<layout::AbortState> device_abort(std::vector{abort});
    const DeviceArray<layout::LaneRow> rows(rows_);
    const DeviceArray<bf16> q(q_);
    const DeviceArray<float> kv(kv_);
    const DeviceArray<float> norm(norm_);
    const DeviceArray<float> cos(table_.cos);
    const DeviceArray<float> sin(table_.sin);
    const DeviceArray<PageId> tables(pages_.tables);
    DeviceArray<bf16> pool(
        static_cast<std::size_t>(pages_.num_pages() * shape_.page_size * kLatentRowDim));
    DeviceArray<bf16> queries(rows_.size() * shape_.query_dim());
    const Status status =
        kernels::cuda::launch_latent_rows({.max_rows = max_rows,
                                           .num_heads = shape_.num_heads,
                                           .nope_dim = kNopeDim,
                                           .control = device_control.data(),
                                           .abort = device_abort.data(),
                                           .rows = rows.data(),
                                           .q = q.data(),
                                           .kv = kv.data(),
                                           .norm_weight = norm.data(),
                                           .cos = cos.data(),
                                           .sin = sin.data(),
                                           .max_positions = kMaxPositions,
                                           .interleaved = interleaved_,
                                           .eps = 1e-6F,
                                           .latents = {.rows = pool.data(),
                                                       .page_size = shape_.page_size,
                                                       .page_tables = tables.data(),
                                                       .pages_per_slot = pages_.pages_per_slot},
                                           .queries = queries.data()},
                                          nullptr);
    EXPECT_TRUE(status.is_ok()) << status.message();
    return {queries.get(), pool.get()};
  }

  /// Poison but for what the rows write.
  Written expected() const {
    const std::vector<float> q = to_floats(q_);
    std::vector<std::int32_t> positions;
    for (const auto& row : rows_) {
      positions.push_back(static_cast<std::int32_t>(row.position));
    }
    std::vector<float> latents(rows_.size() * kLatentRowDim);
    std::vector<float> queries(rows_.size() * shape_.query_dim());
    kernels::reference_latent_rows({.num_rows = static_cast<std::int64_t>(rows_.size()),
                                    .num_heads = shape_.num_heads,
                                    .nope_dim = kNopeDim,
                                    .latent_dim = kLatentDim,
                                    .q = q.data(),
                                    .kv = kv_.data(),
                                    .kv_stride = kLatentRowDim,
                                    .norm_weight = norm_.data(),
                                    .positions = positions.data(),
                                    .table = &table_,
                                    .interleaved = interleaved_,
                                    .eps = 1e-6F,
                                    .latents = latents.data(),
                                    .queries = queries.data()});
    Written written{std::vector<bf16>(queries.size(), bf16{0xffff}),
                    std::vector<bf16>(static_cast<std::size_t>(pages_.num_pages() *
                                                               shape_.page_size * kLatentRowDim),
                                      bf16{0xffff})};
    for (std::size_t i = 0; i < queries.size(); ++i) {
      if (i % kLatentRowDim >= kLatentDim) {
        written.queries[i] = bf16::from_float(queries[i]);
      }
    }
    for (std::size_t row = 0; row < rows_.size(); ++row) {
      const std::int64_t position = rows_[row].position;
      const std::int64_t page = pages_.tables[static_cast<std::size_t>(
          rows_[row].slot * pages_.pages_per_slot + position / shape_.page_size)];
      const auto first = static_cast<std::size_t>(
          (page * shape_.page_size + position % shape_.page_size) * kLatentRowDim);
      for (std::size_t d = 0; d < static_cast<std::size_t>(kLatentRowDim); ++d) {
        written.pool[first + d] = bf16::from_float(latents[row * kLatentRowDim + d]);
      }
    }
    return written;
  }

  std::int64_t num_rows() const { return static_cast<std::int64_t>(rows_.size()); }

 private:
  std::size_t q_dim() const {
    return static_cast<std::size_t>(shape_.num_heads * (kNopeDim + kLatentRopeDim));
  }

  Shape shape_;
  bool interleaved_;
  ScatteredPages pages_;
  kernels::RopeTable table_;
  std::vector<layout::LaneRow> rows_;
  std::vector<bf16> q_;
  std::vector<float> kv_;
  std::vector<float> norm_;
};

/// Equal but for the last bit of some; what is poison in one is poison in the other.
void expect_nearly(const std::vector<bf16>& actual, const std::vector<bf16>& expected) {
  ASSERT_EQ(actual.size(), expected.size());
  for (std::size_t i = 0; i < actual.size(); ++i) {
    if (expected[i].bits == 0xffff) {
      ASSERT_EQ(actual[i].bits, 0xffff) << "element " << i << " was written";
    } else {
      ASSERT_NEAR(actual[i].to_float(), expected[i].to_float(),
                  std::abs(expected[i].to_float()) / 100 + 1e-4F)
          << "element " << i;
    }
  }
}

TEST(LatentRowsCudaTest, EqualTheReference) {
  for (const Shape& shape : {Shape{16, 16}, Shape{5, 1}, Shape{128, 64}}) {
    for (const bool interleaved : {true, false}) {
      const RowsRun rows(shape, interleaved);
      const auto written = rows.run(rows.num_rows());
      const auto expected = rows.expected();
      expect_nearly(written.queries, expected.queries);
      expect_nearly(written.pool, expected.pool);
    }
  }
}

TEST(LatentRowsCudaTest, RowsPastTheBatchAndAbortedEpochsWriteNothing) {
  const RowsRun rows({16, 16}, true);
  const auto all = rows.run(rows.num_rows());
  const auto some = rows.run(3);
  const std::size_t count = 3 * Shape{16, 16}.query_dim();
  EXPECT_TRUE(std::equal(some.queries.begin(),
                         some.queries.begin() + static_cast<std::ptrdiff_t>(count),
                         all.queries.begin()));
  EXPECT_TRUE(std::all_of(some.queries.begin() + static_cast<std::ptrdiff_t>(count),
                          some.queries.end(), [](bf16 value) { return value.bits == 0xffff; }));
  const auto none = rows.run(rows.num_rows(), true);
  for (const auto* written : {&none.queries, &none.pool}) {
    EXPECT_TRUE(std::all_of(written->begin(), written->end(),
                            [](bf16 value) { return value.bits == 0xffff; }));
  }
}

TEST(LatentRowsCudaTest, ImpossibleShapesAreRefused) {
  kernels::cuda::LatentRowsParams params;
  params.num_heads = 16;
  params.max_positions = 10;
  params.latents = {.page_size = 12, .pages_per_slot = 1};
  EXPECT_EQ(kernels::cuda::launch_latent_rows(params, nullptr).code(),
            StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace fastfd::testing
