#include "attention_support.h"
#include "kernels/rope/op.h"
#include "kernels/rope/op_cuda.h"

namespace fastfd::testing {
namespace {

using kernels::QkNorm;

struct RopeCase {
  KvShape shape;
  std::int64_t rotary_dim;
  QkNorm norm;
};

/// What one launch leaves behind.
struct Written {
  std::vector<float> q;
  std::vector<std::uint8_t> keys;
  std::vector<std::uint8_t> values;
};

constexpr std::int64_t kMaxPositions = 300;
constexpr std::int64_t kNumSlots = 3;
constexpr float kKeyScale = 0.25F;
constexpr float kValueScale = 0.5F;

class RopeRun {
 public:
  explicit RopeRun(const RopeCase& rope_case)
      : shape_(rope_case.shape),
        pages_(kNumSlots, kMaxPositions, shape_.page_size),
        norm_(rope_case.norm),
        table_(kernels::RopeTable::make(kMaxPositions, {.rotary_dim = rope_case.rotary_dim})),
        rows_(make_rows()),
        qkv_(to_bf16(random_floats(rows_.size() * static_cast<std::size_t>(shape_.row_dim()), 5))) {
    // Of one head each, or of all.
    q_norm_ = random_floats(static_cast<std::size_t>(shape_.num_q_heads * shape_.head_dim), 6);
    k_norm_ = random_floats(static_cast<std::size_t>(shape_.num_kv_heads * shape_.head_dim), 7);
  }

  /// Of a bucket of `max_rows`, which may be more rows than there are.
  Written run(std::int64_t num_rows, std::int64_t max_rows, bool aborted = false) const {
    std::vector<layout::LaneRow> rows = rows_;
    rows.resize(static_cast<std::size_t>(max_rows), {.slot = 0, .position = 1});
    std::vector<bf16> qkv = qkv_;
    qkv.resize(static_cast<std::size_t>(max_rows * shape_.row_dim()), bf16{0x3f80});
    layout::LaneControl control;
    control.num_rows = static_cast<std::uint32_t>(num_rows);
    layout::AbortState abort;
    abort.aborted = aborted ? 1 : 0;
    const DeviceArray<layout::LaneControl> device_control(std::vector{control});
    const DeviceArray<layout::AbortState> device_abort(std::vector{abort});
    const DeviceArray<layout::LaneRow> device_rows(rows);
    const DeviceArray<bf16> device_qkv(qkv);
    const DeviceArray<PageId> tables(pages_.tables);
    const DeviceArray<float> cos(table_.cos);
    const DeviceArray<float> sin(table_.sin);
    const DeviceArray<float> q_norm(q_norm_);
    const DeviceArray<float> k_norm(k_norm_);
    DeviceArray<float> inverse_rms(static_cast<std::size_t>(2 * max_rows));
    DeviceArray<bf16> q(static_cast<std::size_t>(max_rows * shape_.out_dim()));
    DeviceArray<std::uint8_t> keys(pool_bytes());
    DeviceArray<std::uint8_t> values(pool_bytes());
    const Status status =
        kernels::cuda::launch_rope_kv_write({.max_rows = max_rows,
                                             .num_q_heads = shape_.num_q_heads,
                                             .control = device_control.data(),
                                             .abort = device_abort.data(),
                                             .rows = device_rows.data(),
                                             .qkv = device_qkv.data(),
                                             .q = q.data(),
                                             .kv = {.keys = keys.data(),
                                                    .values = values.data(),
                                                    .dtype = shape_.dtype,
                                                    .page_size = shape_.page_size,
                                                    .num_kv_heads = shape_.num_kv_heads,
                                                    .head_dim = shape_.head_dim,
                                                    .page_tables = tables.data(),
                                                    .pages_per_slot = pages_.pages_per_slot,
                                                    .key_scale = kKeyScale,
                                                    .value_scale = kValueScale},
                                             .norm = norm_,
                                             .q_norm_weight = q_norm.data(),
                                             .k_norm_weight = k_norm.data(),
                                             .inverse_rms = inverse_rms.data(),
                                             .cos = cos.data(),
                                             .sin = sin.data(),
                                             .max_positions = kMaxPositions,
                                             .rotary_dim = table_.rotary_dim,
                                             .eps = 1e-6F},
                                            nullptr);
    EXPECT_TRUE(status.is_ok()) << status.message();
    return {to_floats(q.get()), keys.get(), values.get()};
  }

  /// The same by the reference, in place on the projection.
  std::vector<float> expected() const {
    std::vector<float> qkv = to_floats(qkv_);
    std::vector<std::int32_t> positions;
    for (const layout::LaneRow& row : rows_) {
      positions.push_back(static_cast<std::int32_t>(row.position));
    }
    kernels::reference_qk_norm_rope({.num_rows = static_cast<std::int64_t>(rows_.size()),
                                     .num_q_heads = shape_.num_q_heads,
                                     .num_kv_heads = shape_.num_kv_heads,
                                     .head_dim = shape_.head_dim,
                                     .qkv = qkv.data(),
                                     .norm = norm_,
                                     .q_norm_weight = q_norm_.data(),
                                     .k_norm_weight = k_norm_.data(),
                                     .positions = positions.data(),
                                     .table = &table_,
                                     .eps = 1e-6F});
    return qkv;
  }

  /// Compares the first num_rows rows, and expects poison everywhere else.
  void check(const Written& written, std::int64_t num_rows) const {
    const std::vector<float> reference = expected();
    std::vector<float> q;
    std::vector<std::uint8_t> keys(pool_bytes(), 0xff);
    std::vector<std::uint8_t> values(pool_bytes(), 0xff);
    std::vector<float> actual_kv;
    std::vector<float> expected_kv;
    for (std::int64_t row = 0; row < num_rows; ++row) {
      const auto begin = reference.begin() + row * shape_.row_dim();
      q.insert(q.end(), begin, begin + shape_.out_dim());
      const layout::LaneRow& entry = rows_[static_cast<std::size_t>(row)];
      for (std::int64_t head = 0; head < shape_.num_kv_heads; ++head) {
        const std::size_t element = pool_element(shape_, pages_, entry.slot, entry.position, head);
        const auto key = begin + shape_.out_dim() + head * shape_.head_dim;
        take(written.keys, keys, element, kKeyScale, actual_kv);
        expected_kv.insert(expected_kv.end(), key, key + shape_.head_dim);
        take(written.values, values, element, kValueScale, actual_kv);
        const auto value = key + shape_.num_kv_heads * shape_.head_dim;
        expected_kv.insert(expected_kv.end(), value, value + shape_.head_dim);
      }
    }
    const std::vector<float> actual_q(written.q.begin(),
                                      written.q.begin() + num_rows * shape_.out_dim());
    const double tolerance = shape_.dtype == DType::kBFloat16 ? 5e-3 : 3e-2;
    EXPECT_LT(relative_error(actual_q, q), 5e-3);
    EXPECT_LT(relative_error(actual_kv, expected_kv), tolerance);
    EXPECT_EQ(written.keys, keys) << "a key outside the rows' places was written";
    EXPECT_EQ(written.values, values) << "a value outside the rows' places was written";
    for (std::size_t i = q.size(); i < written.q.size(); ++i) {
      ASSERT_TRUE(std::isnan(written.q[i])) << "a row past the batch was written";
    }
  }

 private:
  std::size_t pool_bytes() const {
    return static_cast<std::size_t>(pages_.num_pages() * shape_.num_kv_heads * shape_.page_size *
                                    shape_.head_dim) *
           dtype_bytes(shape_.dtype);
  }

  /// Appends the numbers of one head's row in the pool, and copies the row to `copy`.
  void take(const std::vector<std::uint8_t>& pool, std::vector<std::uint8_t>& copy,
            std::size_t element, float scale, std::vector<float>& numbers) const {
    const std::size_t width = dtype_bytes(shape_.dtype);
    for (std::size_t i = element * width;
         i < (element + static_cast<std::size_t>(shape_.head_dim)) * width; i += width) {
      numbers.push_back(
          width == 1 ? from_e4m3(pool[i]) * scale
                     : bf16{static_cast<std::uint16_t>(pool[i] | pool[i + 1] << 8)}.to_float());
      std::copy_n(pool.begin() + static_cast<std::ptrdiff_t>(i), width,
                  copy.begin() + static_cast<std::ptrdiff_t>(i));
    }
  }

  KvShape shape_;
  ScatteredPages pages_;
  QkNorm norm_;
  kernels::RopeTable table_;
  std::vector<layout::LaneRow> rows_;
  std::vector<bf16> qkv_;
  std::vector<float> q_norm_;
  std::vector<float> k_norm_;
};

TEST(RopeCudaTest, EqualsTheReference) {
  for (const DType dtype : {DType::kBFloat16, DType::kFloat8E4M3}) {
    for (const RopeCase& rope_case : {RopeCase{{8, 2, 128, 16, dtype}, 128, QkNorm::kPerHead},
                                      RopeCase{{8, 2, 128, 64, dtype}, 128, QkNorm::kNone},
                                      RopeCase{{12, 2, 128, 16, dtype}, 64, QkNorm::kWhole},
                                      RopeCase{{3, 3, 64, 16, dtype}, 64, QkNorm::kPerHead},
                                      RopeCase{{5, 1, 64, 16, dtype}, 64, QkNorm::kWhole},
                                      RopeCase{{7, 1, 64, 1, dtype}, 32, QkNorm::kNone},
                                      RopeCase{{6, 2, 256, 16, dtype}, 64, QkNorm::kPerHead},
                                      RopeCase{{2, 1, 256, 64, dtype}, 256, QkNorm::kNone}}) {
      const RopeRun run(rope_case);
      for (const std::int64_t num_rows : {0, 1, 32}) {
        for (const std::int64_t max_rows : {32, 300}) {
          SCOPED_TRACE(std::to_string(rope_case.shape.head_dim) + " wide heads, " +
                       std::to_string(rope_case.rotary_dim) + " rotated, " + to_string(dtype) +
                       ", " + std::to_string(num_rows) + " of " + std::to_string(max_rows) +
                       " rows");
          run.check(run.run(num_rows, max_rows), num_rows);
        }
      }
    }
  }
}

TEST(RopeCudaTest, AnAbortedEpochWritesNothing) {
  const RopeRun run({{8, 2, 128, 16, DType::kBFloat16}, 128, QkNorm::kPerHead});
  run.check(run.run(32, 32, true), 0);
}

}  // namespace
}  // namespace fastfd::testing
