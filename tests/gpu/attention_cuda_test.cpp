#include <algorithm>
#include <cmath>
#include <limits>

#include "attention_support.h"
#include "kernels/attention/op_cuda.h"
#include "kernels/layout/lane_batch.h"
#include "kernels/layout/lane_control.h"

namespace fastfd::testing {
namespace {

constexpr float kKeyScale = 0.25F;
constexpr float kValueScale = 0.5F;
constexpr std::int64_t kNumSms = 132;

/// Rows of a sequence that one launch computes.
struct Piece {
  std::int64_t slot;
  std::int64_t start;
  std::int64_t num_rows;
};

/// Sequences whose tokens are all in the pool, and queries for every position of each.
class World {
 public:
  World(const KvShape& shape, std::vector<std::int64_t> lengths)
      : shape_(shape),
        lengths_(std::move(lengths)),
        max_context_(*std::max_element(lengths_.begin(), lengths_.end())),
        pages_(static_cast<std::int64_t>(lengths_.size()), max_context_, shape.page_size),
        keys_(pool_values(1)),
        values_(pool_values(2)),
        key_bytes_(to_pool_bytes(shape.dtype, keys_, key_scale())),
        value_bytes_(to_pool_bytes(shape.dtype, values_, value_scale())),
        tables_(pages_.tables) {
    for (std::size_t slot = 0; slot < lengths_.size(); ++slot) {
      queries_.push_back(
          to_bf16(random_floats(static_cast<std::size_t>(lengths_[slot] * shape.out_dim()),
                                static_cast<std::uint32_t>(100 + slot))));
    }
    require_cuda(cudaSetDevice(0), "cudaSetDevice");
    EXPECT_TRUE(kernels::cuda::prepare_paged_attention().is_ok());
  }

  /// Results of the pieces' rows, one after another; poison where nothing was written.
  std::vector<bf16> run(const std::vector<Piece>& pieces, std::int64_t row_split_limit = 8192,
                        bool aborted = false, int num_layers = 1) const {
    std::vector<layout::LaneSpan> spans;
    std::vector<bf16> q;
    for (const Piece& piece : pieces) {
      const auto& all = queries_[static_cast<std::size_t>(piece.slot)];
      spans.push_back({.first_row = static_cast<std::uint32_t>(
                           q.size() / static_cast<std::size_t>(shape_.out_dim())),
                       .num_rows = static_cast<std::uint32_t>(piece.num_rows),
                       .start_position = static_cast<std::uint32_t>(piece.start),
                       .slot = static_cast<SlotId>(piece.slot)});
      q.insert(q.end(), all.begin() + piece.start * shape_.out_dim(),
               all.begin() + (piece.start + piece.num_rows) * shape_.out_dim());
    }
    const auto num_rows = static_cast<std::int64_t>(q.size()) / shape_.out_dim();
    layout::LaneControl control;
    control.num_rows = static_cast<std::uint32_t>(num_rows);
    control.num_spans = static_cast<std::uint32_t>(spans.size());
    // The bucket is larger than what is in it.
    spans.resize(spans.size() + 3, {.first_row = 0, .num_rows = 1, .start_position = 0, .slot = 0});
    q.resize(q.size() + static_cast<std::size_t>(2 * shape_.out_dim()), bf16{0x7fff});
    return launch(spans, q, control, row_split_limit, aborted, num_layers);
  }

  /// The same by the CPU's kernel, which is tested against the naive reference and takes a fraction
  /// of its time.
  std::vector<float> expected(const std::vector<Piece>& pieces) const {
    std::vector<float> keys = keys_;
    std::vector<float> values = values_;
    for (float& key : keys) {
      key = round_to(shape_.dtype, key, key_scale());
    }
    for (float& value : values) {
      value = round_to(shape_.dtype, value, value_scale());
    }
    std::vector<float> all;
    for (const Piece& piece : pieces) {
      const std::vector<float> qkv = projection(piece, keys, values);
      const auto slot = static_cast<std::size_t>(piece.slot);
      const kernels::AttentionSpan span{
          .num_rows = piece.num_rows,
          .start_position = piece.start,
          .pages = &pages_.tables[slot * static_cast<std::size_t>(pages_.pages_per_slot)]};
      std::vector<float> out(static_cast<std::size_t>(piece.num_rows * shape_.out_dim()));
      const Status status =
          kernels::launch_paged_attention({.num_q_heads = shape_.num_q_heads,
                                           .qkv = qkv.data(),
                                           .pool = {.keys = keys.data(),
                                                    .values = values.data(),
                                                    .dtype = DType::kFloat32,
                                                    .num_pages = pages_.num_pages(),
                                                    .page_size = shape_.page_size,
                                                    .num_kv_heads = shape_.num_kv_heads,
                                                    .head_dim = shape_.head_dim},
                                           .spans = {&span, 1},
                                           .out = out.data(),
                                           .scale = scale()},
                                          {.isa = device::detect_isa()});
      EXPECT_TRUE(status.is_ok()) << status.message();
      all.insert(all.end(), out.begin(), out.end());
    }
    return all;
  }

 private:
  float key_scale() const { return shape_.dtype == DType::kBFloat16 ? 1.0F : kKeyScale; }
  float value_scale() const { return shape_.dtype == DType::kBFloat16 ? 1.0F : kValueScale; }
  float scale() const { return 1.0F / std::sqrt(static_cast<float>(shape_.head_dim)); }

  /// NaN where no sequence has a token.
  std::vector<float> pool_values(std::uint32_t seed) const {
    const auto num_elements = static_cast<std::size_t>(pages_.num_pages() * shape_.num_kv_heads *
                                                       shape_.page_size * shape_.head_dim);
    const auto random = random_floats(num_elements, seed);
    std::vector<float> pool(num_elements, std::numeric_limits<float>::quiet_NaN());
    for (std::size_t slot = 0; slot < lengths_.size(); ++slot) {
      for (std::int64_t position = 0; position < lengths_[slot]; ++position) {
        for (std::int64_t head = 0; head < shape_.num_kv_heads; ++head) {
          const std::size_t first =
              pool_element(shape_, pages_, static_cast<std::int64_t>(slot), position, head);
          std::copy_n(random.begin() + static_cast<std::ptrdiff_t>(first), shape_.head_dim,
                      pool.begin() + static_cast<std::ptrdiff_t>(first));
        }
      }
    }
    return pool;
  }

  /// Rows as the CPU's attention takes them: queries, and the keys and values already in the pool.
  std::vector<float> projection(const Piece& piece, const std::vector<float>& keys,
                                const std::vector<float>& values) const {
    std::vector<float> qkv;
    for (std::int64_t i = piece.start; i < piece.start + piece.num_rows; ++i) {
      const auto& q = queries_[static_cast<std::size_t>(piece.slot)];
      for (std::int64_t d = 0; d < shape_.out_dim(); ++d) {
        qkv.push_back(q[static_cast<std::size_t>(i * shape_.out_dim() + d)].to_float());
      }
      for (const auto* pool : {&keys, &values}) {
        for (std::int64_t head = 0; head < shape_.num_kv_heads; ++head) {
          const auto first = pool->begin() + static_cast<std::ptrdiff_t>(
                                                 pool_element(shape_, pages_, piece.slot, i, head));
          qkv.insert(qkv.end(), first, first + shape_.head_dim);
        }
      }
    }
    return qkv;
  }

  std::vector<bf16> launch(const std::vector<layout::LaneSpan>& spans, const std::vector<bf16>& q,
                           const layout::LaneControl& control, std::int64_t row_split_limit,
                           bool aborted, int num_layers) const {
    const kernels::cuda::AttentionBucket bucket{
        .max_rows = static_cast<std::int64_t>(q.size()) / shape_.out_dim(),
        .max_spans = static_cast<std::int64_t>(spans.size()),
        .max_context = max_context_,
        .num_q_heads = shape_.num_q_heads,
        .num_kv_heads = shape_.num_kv_heads,
        .head_dim = shape_.head_dim};
    auto workspace = kernels::cuda::AttentionWorkspace::of(bucket, row_split_limit);
    DeviceArray<std::byte> workspace_bytes(workspace.num_bytes());
    workspace.data = workspace_bytes.data();
    layout::AbortState abort;
    abort.aborted = aborted ? 1 : 0;
    const DeviceArray<layout::AbortState> device_abort(std::vector{abort});
    const DeviceArray<layout::LaneControl> device_control(std::vector{control});
    const DeviceArray<layout::LaneSpan> device_spans(spans);
    const DeviceArray<bf16> device_q(q);
    DeviceArray<bf16> out(q.size());
    // The pools are read only, but a layer's attention and its KV write share a struct.
    DeviceArray<std::uint8_t> keys(key_bytes_);
    DeviceArray<std::uint8_t> values(value_bytes_);
    EXPECT_TRUE(kernels::cuda::launch_attention_schedule({.workspace = workspace,
                                                          .control = device_control.data(),
                                                          .spans = device_spans.data()},
                                                         nullptr)
                    .is_ok());
    for (int layer = 0; layer < num_layers; ++layer) {
      const Status status =
          kernels::cuda::launch_paged_attention({.workspace = workspace,
                                                 .num_sms = kNumSms,
                                                 .abort = device_abort.data(),
                                                 .spans = device_spans.data(),
                                                 .kv = {.keys = keys.data(),
                                                        .values = values.data(),
                                                        .dtype = shape_.dtype,
                                                        .page_size = shape_.page_size,
                                                        .num_kv_heads = shape_.num_kv_heads,
                                                        .head_dim = shape_.head_dim,
                                                        .page_tables = tables_.data(),
                                                        .pages_per_slot = pages_.pages_per_slot,
                                                        .key_scale = key_scale(),
                                                        .value_scale = value_scale()},
                                                 .q = device_q.data(),
                                                 .out = out.data(),
                                                 .scale = scale()},
                                                nullptr);
      EXPECT_TRUE(status.is_ok()) << status.message();
      if (layer + 1 < num_layers) {
        require_cuda(cudaMemsetAsync(out.data(), 0xff, out.num_bytes(), nullptr), "memset");
      }
    }
    auto rows = out.get();
    for (std::size_t i = rows.size() - static_cast<std::size_t>(2 * shape_.out_dim());
         i < rows.size(); ++i) {
      EXPECT_EQ(rows[i].bits, 0xffff) << "a row past the batch was written";
    }
    rows.resize(rows.size() - static_cast<std::size_t>(2 * shape_.out_dim()));
    return rows;
  }

  KvShape shape_;
  std::vector<std::int64_t> lengths_;
  std::int64_t max_context_;
  ScatteredPages pages_;
  std::vector<float> keys_;
  std::vector<float> values_;
  std::vector<std::uint8_t> key_bytes_;
  std::vector<std::uint8_t> value_bytes_;
  std::vector<std::vector<bf16>> queries_;
  DeviceArray<PageId> tables_;
};

std::string describe(const KvShape& shape) {
  return std::to_string(shape.num_q_heads) + " query heads, " + std::to_string(shape.num_kv_heads) +
         " KV heads of " + std::to_string(shape.head_dim) + ", pages of " +
         std::to_string(shape.page_size) + " " + to_string(shape.dtype);
}

/// Every head size, pool type and kind of group, with both page sizes.
std::vector<KvShape> shapes() {
  std::vector<KvShape> all;
  for (const DType dtype : {DType::kBFloat16, DType::kFloat8E4M3}) {
    all.push_back({8, 1, 128, 16, dtype});
    all.push_back({4, 2, 64, 64, dtype});
    all.push_back({6, 2, 256, 16, dtype});
    all.push_back({7, 7, 64, 16, dtype});
    all.push_back({5, 1, 128, 64, dtype});
    all.push_back({20, 1, 64, 1, dtype});
    all.push_back({2, 2, 256, 64, dtype});
  }
  return all;
}

// First tokens, borders of tiles and splits, short and long pieces.
const std::vector<std::int64_t> kLengths = {1, 64, 257, 256, 700, 65, 300, 90, 530, 1100, 513, 512};
const std::vector<Piece> kMix = {{0, 0, 1},     {1, 63, 1},   {2, 256, 1},  {3, 255, 1},
                                 {4, 512, 188}, {5, 0, 65},   {6, 297, 3},  {7, 0, 90},
                                 {8, 500, 20},  {9, 1099, 1}, {10, 512, 1}, {11, 511, 1}};

TEST(AttentionCudaTest, EqualsTheReferenceOnARaggedMix) {
  for (const KvShape& shape : shapes()) {
    const World world(shape, kLengths);
    EXPECT_LT(relative_error(to_floats(world.run(kMix)), world.expected(kMix)), 5e-3)
        << describe(shape);
  }
}

TEST(AttentionCudaTest, EqualsTheReferenceAtALongContext) {
  for (const DType dtype : {DType::kBFloat16, DType::kFloat8E4M3}) {
    const KvShape shape{8, 2, 128, 16, dtype};
    const World world(shape, {8192, 5000, 8191});
    const std::vector<Piece> pieces = {{0, 8191, 1}, {1, 4990, 10}, {2, 8190, 1}};
    EXPECT_LT(relative_error(to_floats(world.run(pieces)), world.expected(pieces)), 5e-3)
        << describe(shape);
  }
}

bool same_bits(const std::vector<bf16>& a, const std::vector<bf16>& b) {
  return a.size() == b.size() && std::equal(a.begin(), a.end(), b.begin());
}

TEST(AttentionCudaTest, ARowsBitsDependOnItsOwnSequenceOnly) {
  for (const KvShape& shape : shapes()) {
    const World world(shape, kLengths);
    const auto together = world.run(kMix);
    auto row = together.begin();
    for (const Piece& piece : kMix) {
      const auto end = row + piece.num_rows * shape.out_dim();
      const std::vector<bf16> among_others(row, end);
      row = end;
      EXPECT_TRUE(same_bits(among_others, world.run({piece}))) << describe(shape);
    }
    // Nothing fits into the workspace: every sequence is one block's.
    EXPECT_TRUE(same_bits(together, world.run(kMix, 0))) << describe(shape);
    EXPECT_TRUE(same_bits(together, world.run(kMix, 4))) << describe(shape);
    // The counters are ready again for the next layer.
    EXPECT_TRUE(same_bits(together, world.run(kMix, 8192, false, 3))) << describe(shape);
  }
}

TEST(AttentionCudaTest, ARowsBitsDoNotDependOnThePiecesOfThePrompt) {
  for (const KvShape& shape : shapes()) {
    const World world(shape, {1060});
    const auto whole = world.run({{0, 0, 1060}});
    for (const std::vector<std::int64_t>& cut : {std::vector<std::int64_t>{1, 1059},
                                                 {2, 1058},
                                                 {5, 525, 530},
                                                 {64, 64, 64, 64, 256, 18, 530},
                                                 {512, 512, 36},
                                                 {7, 500, 1, 1, 1, 1, 2, 3, 540, 1, 2, 1}}) {
      std::vector<bf16> pieces;
      std::int64_t position = 0;
      for (const std::int64_t num_rows : cut) {
        const auto rows = world.run({{0, position, num_rows}});
        pieces.insert(pieces.end(), rows.begin(), rows.end());
        position += num_rows;
      }
      EXPECT_TRUE(same_bits(whole, pieces)) << describe(shape) << ", " << cut.size() << " pieces";
    }
  }
}

TEST(AttentionCudaTest, NoSpansAreLegal) {
  const World world({8, 1, 128, 16, DType::kBFloat16}, {10});
  EXPECT_TRUE(world.run({}).empty());
}

TEST(AttentionCudaTest, AnAbortedEpochComputesNothing) {
  const World world({8, 1, 128, 16, DType::kBFloat16}, {10, 300});
  for (const bf16 value : world.run({{0, 0, 10}, {1, 299, 1}}, 8192, true)) {
    ASSERT_EQ(value.bits, 0xffff);
  }
}

TEST(AttentionCudaTest, ImpossibleShapesAreRefused) {
  kernels::cuda::PagedAttentionParams params;
  params.workspace.bucket = {.num_q_heads = 8, .num_kv_heads = 2, .head_dim = 128};
  params.num_sms = 1;
  params.kv = {.page_size = 16, .num_kv_heads = 2, .head_dim = 128, .pages_per_slot = 1};
  const auto code = [&] { return kernels::cuda::launch_paged_attention(params, nullptr).code(); };
  params.kv.page_size = 12;
  EXPECT_EQ(code(), StatusCode::kInvalidArgument);
  params.kv.page_size = 16;
  params.kv.dtype = DType::kFloat32;
  EXPECT_EQ(code(), StatusCode::kInvalidArgument);
  params.kv.dtype = DType::kBFloat16;
  params.workspace.bucket.num_q_heads = 3;
  EXPECT_EQ(code(), StatusCode::kInvalidArgument);
  params.workspace.bucket.num_q_heads = 8;
  params.workspace.bucket.head_dim = 96;
  EXPECT_EQ(code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace fastfd::testing
