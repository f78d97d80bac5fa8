#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "fastfd/transport/window_shape.h"
#include "unit/transport_support.h"

namespace fastfd::transport {
namespace {

using testing::HasSubstr;
using testing_support::small_shape;

TEST(WindowShape, ValidShapesPass) {
  EXPECT_TRUE(validate(small_shape()));
  EXPECT_TRUE(validate({4096, 16384, 8, 94, DType::kBFloat16, DType::kFloat32}));
}

TEST(WindowShape, EachFieldThatCannotBeIsNamed) {
  const auto message_of = [](auto change) {
    WindowShape shape = small_shape();
    change(shape);
    const Status status = validate(shape);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    return status.message();
  };
  EXPECT_THAT(message_of([](WindowShape& s) { s.max_lane_rows = 0; }),
              HasSubstr("max_lane_rows is 0"));
  EXPECT_THAT(message_of([](WindowShape& s) { s.hidden_dim = 0; }), HasSubstr("hidden_dim is 0"));
  EXPECT_THAT(message_of([](WindowShape& s) { s.max_routes_per_row = 0; }),
              HasSubstr("max_routes_per_row is 0"));
  EXPECT_THAT(message_of([](WindowShape& s) { s.num_layers = 0; }), HasSubstr("num_layers is 0"));
  EXPECT_THAT(message_of([](WindowShape& s) { s.hidden_dim = 0xffffffffU; }),
              HasSubstr("hidden_dim is 4294967295"));
  EXPECT_THAT(message_of([](WindowShape& s) { s.combine_dtype = DType::kFloat8E4M3; }),
              HasSubstr("combine_dtype is float8_e4m3, must be float32, bfloat16 or float16"));
  EXPECT_THAT(message_of([](WindowShape& s) {
                s.hidden_dim = 192;
                s.dispatch_dtype = DType::kFloat8E4M3;
              }),
              HasSubstr("dispatch_dtype is float8_e4m3, which has a scale every 128 values and "
                        "hidden_dim is 192; use bfloat16"));
  EXPECT_THAT(message_of([](WindowShape& s) {
                s.max_lane_rows = 1U << 20;
                s.hidden_dim = 1U << 17;
              }),
              HasSubstr("lower max_lane_rows (1048576)"));
}

TEST(WindowShape, QuantisedRowsCarryTheirScales) {
  WindowShape shape{512, 2048, 8, 48, DType::kFloat8E4M3, DType::kBFloat16};
  EXPECT_TRUE(validate(shape));
  const WindowBytes fp8 = window_bytes(shape, 1, 1);
  shape.dispatch_dtype = DType::kBFloat16;
  const WindowBytes bf16 = window_bytes(shape, 1, 1);
  // 8 buffers of 512 rows: 2048 values and 16 scales, padded to 128 bytes, instead of 4096 bytes.
  EXPECT_EQ(bf16.dispatch_window - fp8.dispatch_window, 8U * 512 * (4096 - 2048 - 128));
  EXPECT_EQ(bf16.combine_window, fp8.combine_window);
}

TEST(WindowShape, DifferencesNameBothValues) {
  WindowShape there = small_shape();
  EXPECT_EQ(describe_difference(small_shape(), there), "");
  there.max_lane_rows = 5;
  there.combine_dtype = DType::kBFloat16;
  EXPECT_EQ(
      describe_difference(small_shape(), there),
      "max_lane_rows is 9 here and 5 there, combine_dtype is float32 here and bfloat16 there");
}

TEST(WindowBytes, AddUpOverTheCluster) {
  WindowShape shape;
  shape.max_lane_rows = 512;
  shape.hidden_dim = 256;
  shape.max_routes_per_row = 4;
  shape.num_layers = 8;
  const WindowBytes bytes = window_bytes(shape, 2, 3);
  // 4 lanes x 2 buffers of 512 rows of bf16 and of float.
  EXPECT_GE(bytes.dispatch_window, 8U * 512 * 256 * 2 + 8U * 512 * 4 * 8);
  EXPECT_LE(bytes.dispatch_window, 8U * 512 * 256 * 2 + 8U * (512 * 4 * 8 + 4 * 1024));
  EXPECT_GE(bytes.combine_window, 8U * 512 * 256 * 4);
  EXPECT_LE(bytes.combine_window, 8U * 512 * 256 * 4 + 8192);
  EXPECT_GT(bytes.per_attention_server, 3 * bytes.combine_window);
  EXPECT_GT(bytes.per_ffn_server, 2 * bytes.dispatch_window);
  EXPECT_EQ(bytes.cluster, 2 * bytes.per_attention_server + 3 * bytes.per_ffn_server);
}

}  // namespace
}  // namespace fastfd::transport
