#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <optional>

#include "gpu/moe_support.h"
#include "kernels/combine/op_cuda.h"
#include "kernels/norm/op.h"

namespace fastfd::testing {
namespace {

using kernels::cuda::CombineReceiveParams;
using kernels::cuda::CombineSendParams;
using kernels::cuda::TokenSource;

float round_to(DType dtype, float value) {
  return dtype == DType::kBFloat16 ? bf16::from_float(value).to_float() : value;
}

/// Floats as device memory of a dtype has them.
DeviceArray<std::byte> encode(const std::vector<float>& values, DType dtype) {
  std::vector<std::byte> bytes(values.size() * dtype_bytes(dtype));
  const std::vector<bf16> rounded = to_bf16(values);
  const void* source = dtype == DType::kFloat32 ? static_cast<const void*>(values.data())
                                                : static_cast<const void*>(rounded.data());
  if (!bytes.empty()) {
    std::memcpy(bytes.data(), source, bytes.size());
  }
  return DeviceArray<std::byte>(bytes);
}

// ---- FFN server's half ----

struct SendCase {
  std::vector<std::uint32_t> rows;  ///< of each peer
  std::uint32_t hidden_dim = 256;
  std::uint32_t max_tokens = 64;
  std::uint32_t max_routes_per_token = 4;
  DType output_dtype = DType::kBFloat16;
  DType combine_dtype = DType::kFloat32;
};

/// An FFN server whose experts have run: routes at random places of the lists.
class Answerer {
 public:
  explicit Answerer(const SendCase& shape)
      : case_(shape),
        num_peers_(static_cast<std::uint32_t>(shape.rows.size())),
        layout_(layout::CombineLayout::make(
            {50, shape.hidden_dim * static_cast<std::uint32_t>(dtype_bytes(shape.combine_dtype)),
             0})),
        control_(test_control(0, (ServerMask{1} << num_peers_) - 1)),
        windows_(num_peers_, layout_.grid) {
    std::mt19937 engine(5);
    begin_.push_back(0);
    for (std::uint32_t peer = 0; peer < num_peers_; ++peer) {
      for (std::uint32_t row = 0; row < shape.rows[peer]; ++row) {
        sources_.push_back({peer, row});
        begin_.push_back(begin_.back() + 1 + engine() % shape.max_routes_per_token);
      }
    }
    routes_.resize(begin_.back());
    std::iota(routes_.begin(), routes_.end(), 0);
    std::shuffle(routes_.begin(), routes_.end(), engine);
    weights_ = random_floats(routes_.size(), 6);
    outputs_ = random_floats(routes_.size() * shape.hidden_dim, 7);
  }

  void run() {
    const auto num_lists = std::max<std::size_t>(case_.max_tokens, sources_.size());
    std::vector<TokenSource> padded_sources = sources_;
    std::vector<std::uint32_t> padded_begin = begin_;
    padded_sources.resize(num_lists, {1234, 5678});
    padded_begin.resize(num_lists + 1, 0xdeadbeef);
    DeviceValue<layout::LaneControl> control(control_);
    DeviceArray<std::uint32_t> begin(padded_begin);
    DeviceArray<std::uint32_t> routes(routes_);
    DeviceArray<float> weights(weights_);
    DeviceValue<std::uint32_t> num_tokens(static_cast<std::uint32_t>(sources_.size()));
    DeviceArray<TokenSource> sources(padded_sources);
    DeviceArray<std::uint32_t> rows(case_.rows);
    DeviceArray<std::byte> outputs = encode(outputs_, case_.output_dtype);
    CombineSendParams params;
    params.control = control.data();
    params.hop = kTestHop;
    params.max_tokens = case_.max_tokens;
    params.hidden_dim = case_.hidden_dim;
    params.routes = {begin.data(), routes.data()};
    params.route_weights = weights.data();
    params.num_tokens = num_tokens.data();
    params.token_sources = sources.data();
    params.peer_rows = rows.data();
    params.route_outputs = outputs.data();
    params.output_dtype = case_.output_dtype;
    params.windows = windows_.pointers();
    params.num_peers = num_peers_;
    params.window = layout_;
    params.combine_dtype = case_.combine_dtype;
    params.ctas_done = ctas_done_.data();
    params.abort = abort_.data();
    const Status status = launch_combine_send(params, stream_);
    ASSERT_TRUE(status) << status.to_string();
    stream_.wait();
    EXPECT_EQ(ctas_done_.get(), 0U);
  }

  /// Bit for bit: the order of additions is part of the contract.
  void expect_answers() {
    std::uint32_t token = 0;
    const layout::RowLayout row_layout{case_.hidden_dim, case_.combine_dtype};
    for (std::uint32_t peer = 0; peer < num_peers_; ++peer) {
      std::vector<std::byte> bytes = windows_.get(peer);
      const layout::CombineSlot slot = layout_.slot(bytes.data(), kTestHop.lane, kTestHop.buffer());
      ASSERT_EQ(*slot.flag, kTestHop.flag(control_)) << "peer " << peer;
      EXPECT_EQ(slot.header->num_rows, case_.rows[peer]);
      EXPECT_EQ(slot.header->step, control_.step);
      EXPECT_EQ(slot.header->epoch, control_.epoch);
      for (std::uint32_t row = 0; row < case_.rows[peer]; ++row, ++token) {
        const std::vector<float> values = decode_row(row_layout, row_layout.row(slot.rows, row));
        for (std::uint32_t i = 0; i < case_.hidden_dim; ++i) {
          ASSERT_EQ(values[i], round_to(case_.combine_dtype, reference(token, i)))
              << "peer " << peer << " row " << row << " column " << i;
        }
      }
      if (case_.rows[peer] < layout_.dims.max_rows) {
        EXPECT_EQ(slot.rows[std::size_t{case_.rows[peer]} * layout_.dims.row_bytes],
                  Windows::kPattern);
      }
    }
  }

  float reference(std::uint32_t token, std::uint32_t column) const {
    float sum = 0.0F;
    for (std::uint32_t r = begin_[token]; r < begin_[token + 1]; ++r) {
      const std::size_t route = routes_[r];
      const float output =
          round_to(case_.output_dtype, outputs_[route * case_.hidden_dim + column]);
      sum = std::fma(weights_[route], output, sum);
    }
    return sum;
  }

  SendCase case_;
  std::uint32_t num_peers_;
  layout::CombineLayout layout_;
  layout::LaneControl control_;
  Windows windows_;
  std::vector<TokenSource> sources_;
  std::vector<std::uint32_t> begin_;
  std::vector<std::uint32_t> routes_;
  std::vector<float> weights_;
  std::vector<float> outputs_;
  DeviceValue<std::uint32_t> ctas_done_{0};
  DeviceValue<layout::AbortState> abort_;
  TestStream stream_;
};

TEST(CombineSendTest, AnswersEveryPeerWithPartialSums) {
  constexpr DType kFloat = DType::kFloat32;
  constexpr DType kBf16 = DType::kBFloat16;
  for (const SendCase& shape : std::vector<SendCase>{
           {.rows = {0}, .max_tokens = 0},
           {.rows = {1}, .hidden_dim = 128, .max_tokens = 1},
           {.rows = {7, 0, 5}, .combine_dtype = kBf16},
           {.rows = {33, 30}, .hidden_dim = 4096, .output_dtype = kFloat, .combine_dtype = kBf16},
           {.rows = {3, 2, 1},
           .hidden_dim = 2880,
           .max_routes_per_token = 8,
           .output_dtype = kFloat},
           {.rows = {50, 50, 50}, .hidden_dim = 64, .max_tokens = 150, .max_routes_per_token = 13},
       }) {
    SCOPED_TRACE(::testing::PrintToString(shape.rows));
    Answerer answerer(shape);
    ASSERT_NO_FATAL_FAILURE(answerer.run());
    answerer.expect_answers();
  }
}

TEST(CombineSendTest, MoreTokensThanCtas) {
  Answerer answerer({.rows = {50, 50, 50}, .hidden_dim = 64, .max_tokens = 7});
  ASSERT_NO_FATAL_FAILURE(answerer.run());
  answerer.expect_answers();
}

TEST(CombineSendTest, OnlyParticipantsAreAnswered) {
  Answerer answerer({.rows = {3, 0, 2}});
  answerer.control_.participants = 0b101;
  ASSERT_NO_FATAL_FAILURE(answerer.run());
  EXPECT_EQ(answerer.windows_.get_flag(1, kTestHop.lane, kTestHop.buffer()), layout::kNoFlag);
  EXPECT_NE(answerer.windows_.get_flag(2, kTestHop.lane, kTestHop.buffer()), layout::kNoFlag);
}

TEST(CombineSendTest, WhenAbortedNothingIsStoredAndNoFlagRaised) {
  Answerer answerer({.rows = {3, 4}});
  const std::vector<std::byte> before = answerer.windows_.get(0);
  layout::AbortState aborted;
  aborted.aborted = 1;
  answerer.abort_.put(aborted);
  ASSERT_NO_FATAL_FAILURE(answerer.run());
  EXPECT_EQ(answerer.windows_.get(0), before);
  EXPECT_EQ(answerer.windows_.get(1), before);
  answerer.abort_.put({});
  ASSERT_NO_FATAL_FAILURE(answerer.run());
  answerer.expect_answers();
}

// ---- attention server's half ----

struct ReceiveCase {
  std::uint32_t num_rows = 5;
  std::uint32_t max_rows = 16;
  std::uint32_t hidden_dim = 256;
  std::uint32_t num_servers = 2;
  DType combine_dtype = DType::kFloat32;
  DType norm_dtype = DType::kBFloat16;
  bool has_norm = true;
};

/// An attention server that has got all answers: some rows went to some servers.
class Collector {
 public:
  explicit Collector(const ReceiveCase& shape)
      : case_(shape),
        layout_(layout::CombineLayout::make(
            {shape.max_rows + 2,
             shape.hidden_dim * static_cast<std::uint32_t>(dtype_bytes(shape.combine_dtype)), 0})),
        control_(test_control(shape.num_rows)),
        windows_(shape.num_servers, layout_.grid),
        residual_(random_floats(std::size_t{shape.max_rows} * shape.hidden_dim, 1)),
        norm_(to_bf16(random_floats(shape.hidden_dim, 2, 0.3F, 1.0F))),
        row_index_(std::size_t{shape.num_servers} * shape.max_rows, -1) {
    std::mt19937 engine(3);
    for (std::uint32_t server = 0; server < shape.num_servers; ++server) {
      std::vector<std::int32_t> positions(shape.num_rows);
      std::iota(positions.begin(), positions.end(), 0);
      std::shuffle(positions.begin(), positions.end(), engine);
      partials_.push_back(
          random_floats(std::size_t{layout_.dims.max_rows} * shape.hidden_dim, 10 + server));
      for (float& value : partials_.back()) {
        value = round_to(shape.combine_dtype, value);
      }
      store(server);
      for (std::uint32_t row = 0; row < shape.num_rows; ++row) {
        if (shape.num_servers == 1 || engine() % 3 != 0) {
          row_index_[std::size_t{server} * shape.max_rows + row] = positions[row];
        }
      }
    }
    device_row_index_.put(row_index_);
    device_residual_.emplace(residual_);
  }

  CombineReceiveParams params() {
    device_control_.put(control_);
    CombineReceiveParams params;
    params.control = device_control_.data();
    params.hop = kTestHop;
    params.max_rows = case_.max_rows;
    params.hidden_dim = case_.hidden_dim;
    params.residual = device_residual_->data();
    params.windows = windows_.pointers();
    params.num_servers = case_.num_servers;
    params.window = layout_;
    params.combine_dtype = case_.combine_dtype;
    params.row_index = device_row_index_.data();
    if (case_.has_norm) {
      params.norm = {.values = device_norm_.data(), .dtype = case_.norm_dtype, .eps = 1e-5F};
      if (case_.norm_dtype == DType::kFloat32) {
        params.norm.values = device_float_norm_.data();
      }
    }
    params.y = y_.data();
    params.abort = abort_.data();
    return params;
  }

  void run(const CombineReceiveParams& params) {
    const Status status = launch_combine_receive(params, stream_);
    ASSERT_TRUE(status) << status.to_string();
    stream_.wait();
  }

  /// Residual and y of all rows by the CPU reference.
  std::pair<std::vector<float>, std::vector<float>> reference() const {
    std::vector<float> residual(
        residual_.begin(), residual_.begin() + std::ptrdiff_t{case_.num_rows} * case_.hidden_dim);
    std::vector<float> y(residual.size());
    std::vector<const void*> rows;
    for (std::uint32_t server = 0; server < case_.num_servers; ++server) {
      for (std::uint32_t row = 0; row < case_.num_rows; ++row) {
        const std::int32_t at = row_index_[std::size_t{server} * case_.max_rows + row];
        rows.push_back(at < 0 ? nullptr
                              : partials_[server].data() + std::ptrdiff_t{at} * case_.hidden_dim);
      }
    }
    const std::vector<float> norm = to_floats(norm_);
    kernels::reference_combine_norm({.num_rows = case_.num_rows,
                                     .dim = case_.hidden_dim,
                                     .residual = residual.data(),
                                     .num_ranks = case_.num_servers,
                                     .partials = rows.data(),
                                     .partial_dtype = DType::kFloat32,
                                     .weight = norm.data(),
                                     .y = y.data(),
                                     .eps = 1e-5F});
    return {residual, y};
  }

  ReceiveCase case_;
  layout::CombineLayout layout_;
  layout::LaneControl control_;
  Windows windows_;
  std::vector<float> residual_;
  std::vector<bf16> norm_;
  std::vector<std::int32_t> row_index_;
  std::vector<std::vector<float>> partials_;
  std::optional<DeviceArray<float>> device_residual_;
  DeviceArray<bf16> device_norm_{norm_};
  DeviceArray<float> device_float_norm_{to_floats(norm_)};
  DeviceArray<std::int32_t> device_row_index_{row_index_};
  DeviceArray<bf16> y_{std::size_t{case_.max_rows} * case_.hidden_dim};
  DeviceValue<layout::LaneControl> device_control_;
  DeviceValue<layout::AbortState> abort_;
  TestStream stream_;

 private:
  void store(std::uint32_t server) {
    std::vector<std::byte> bytes = windows_.get(server);
    const layout::CombineSlot slot = layout_.slot(bytes.data(), kTestHop.lane, kTestHop.buffer());
    const std::vector<float>& values = partials_[server];
    for (std::size_t i = 0; i < values.size(); ++i) {
      if (case_.combine_dtype == DType::kFloat32) {
        std::memcpy(slot.rows + i * 4, &values[i], 4);
      } else {
        const bf16 rounded = bf16::from_float(values[i]);
        std::memcpy(slot.rows + i * 2, &rounded, 2);
      }
    }
    windows_.put(server, bytes);
  }
};

template <typename T>
std::vector<T> row_of(const std::vector<T>& rows, std::uint32_t row, std::uint32_t dim) {
  return {rows.begin() + std::ptrdiff_t{row} * dim, rows.begin() + std::ptrdiff_t{row + 1} * dim};
}

TEST(CombineReceiveTest, AddsRanksInOrderAndNormalises) {
  constexpr DType kFloat = DType::kFloat32;
  constexpr DType kBf16 = DType::kBFloat16;
  for (const ReceiveCase& shape : std::vector<ReceiveCase>{
           {.num_rows = 0, .max_rows = 0},
           {.num_rows = 0},
           {.num_rows = 1, .max_rows = 1, .hidden_dim = 128, .num_servers = 1},
           {.num_rows = 7, .num_servers = 3, .combine_dtype = kBf16, .norm_dtype = kFloat},
           {.num_rows = 16, .hidden_dim = 2880, .num_servers = 40},
           {.num_rows = 9, .hidden_dim = 4096, .num_servers = 4, .combine_dtype = kBf16},
           {.num_rows = 3, .hidden_dim = 8192, .has_norm = false},
       }) {
    SCOPED_TRACE(shape.hidden_dim);
    Collector collector(shape);
    ASSERT_NO_FATAL_FAILURE(collector.run(collector.params()));
    const auto [residual, y] = collector.reference();
    std::vector<float> updated = collector.device_residual_->get();
    for (std::size_t i = residual.size(); i < updated.size(); ++i) {
      ASSERT_EQ(updated[i], collector.residual_[i]) << "row behind the last was touched";
    }
    updated.resize(residual.size());
    EXPECT_EQ(updated, residual);  // bit for bit
    std::vector<float> normed = to_floats(collector.y_.get());
    normed.resize(y.size());
    if (shape.has_norm) {
      EXPECT_LE(relative_error(normed, y), 5e-3);
    } else if (!normed.empty()) {
      EXPECT_TRUE(std::isnan(normed[0]));  // not written
    }
  }
}

TEST(CombineReceiveTest, FinalNormTakesSampledRowsOnly) {
  Collector collector({.num_rows = 11, .num_servers = 3});
  collector.control_.num_samples = 3;
  std::vector<layout::LaneSample> samples(5);
  for (std::size_t i = 0; i < samples.size(); ++i) {
    samples[i].row = std::vector<std::uint32_t>{10, 0, 4, 99, 99}[i];
  }
  DeviceArray<layout::LaneSample> sampled(samples);
  CombineReceiveParams params = collector.params();
  params.samples = sampled.data();
  params.max_samples = 5;
  ASSERT_NO_FATAL_FAILURE(collector.run(params));
  const auto [residual, y] = collector.reference();
  const std::vector<float> updated = collector.device_residual_->get();
  const std::vector<float> normed = to_floats(collector.y_.get());
  const std::vector<std::uint32_t> rows{10, 0, 4};
  for (std::uint32_t i = 0; i < 3; ++i) {
    EXPECT_LE(relative_error(row_of(normed, i, 256), row_of(y, rows[i], 256)), 5e-3);
  }
  EXPECT_TRUE(std::isnan(normed[std::size_t{3} * 256]));
  for (std::uint32_t row = 0; row < 11; ++row) {
    const bool is_sampled = std::count(rows.begin(), rows.end(), row) > 0;
    EXPECT_EQ(row_of(updated, row, 256),
              row_of(is_sampled ? residual : collector.residual_, row, 256));
  }
}

TEST(CombineReceiveTest, ALostServerIsSkipped) {
  Collector collector({.num_rows = 6, .num_servers = 3});
  collector.windows_.forget(1);
  for (std::uint32_t row = 0; row < 6; ++row) {
    collector.row_index_[16 + row] = -1;
  }
  ASSERT_NO_FATAL_FAILURE(collector.run(collector.params()));
  std::vector<float> updated = collector.device_residual_->get();
  updated.resize(std::size_t{6} * 256);
  EXPECT_EQ(updated, collector.reference().first);
}

TEST(CombineReceiveTest, WhenAbortedTheResidualStays) {
  Collector collector({.num_rows = 6});
  layout::AbortState aborted;
  aborted.aborted = 1;
  collector.abort_.put(aborted);
  ASSERT_NO_FATAL_FAILURE(collector.run(collector.params()));
  EXPECT_EQ(collector.device_residual_->get(), collector.residual_);
}

TEST(CombineParamsTest, RefusesWhatItCannotDo) {
  Collector collector({});
  CombineReceiveParams params = collector.params();
  params.hidden_dim = 252;
  EXPECT_EQ(launch_combine_receive(params, collector.stream_).code(), StatusCode::kInvalidArgument);
  params = collector.params();
  params.combine_dtype = DType::kBFloat16;
  EXPECT_EQ(launch_combine_receive(params, collector.stream_).code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace fastfd::testing
