#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <filesystem>
#include <limits>
#include <ostream>
#include <string>
#include <vector>

#include "fastfd/model/model.h"
#include "fastfd/model/safetensors.h"
#include "support/tiny_checkpoint.h"

namespace fastfd::model {
namespace {

using test::raw_safetensors;
using test::TemporaryFolder;
using test::TinyTensor;
using test::TinyTensors;
using test::write_file;
using test::write_safetensors;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

template <typename Action>
std::string error_of(const Action& action) {
  try {
    action();
  } catch (const ModelError& error) {
    return error.what();
  }
  return "no error";
}

class SafetensorsTest : public ::testing::Test {
 protected:
  std::filesystem::path file() const { return folder_.path() / "model.safetensors"; }
  /// What opening a file of these bytes says.
  std::string error_of_bytes(const std::string& bytes) const {
    write_file(file(), bytes);
    return error_of([&] { Checkpoint::open(folder_.path()); });
  }
  std::string error_of_header(const std::string& header, std::uint64_t num_data_bytes) const {
    return error_of_bytes(raw_safetensors(header, num_data_bytes));
  }

  TemporaryFolder folder_;
};

TEST_F(SafetensorsTest, ReadsEveryTypeAtEveryAlignment) {
  const TinyTensors tensors = {{"a", {{3}, {1.0F, -2.5F, 0.0F}}},
                               {"b", {{2, 2}, {0.15625F, 96.0F, -1.5F, 3.0F}}},
                               {"empty", {{0, 4}, {}}},
                               {"scalar", {{}, {7.0F}}}};
  for (const char* dtype : {"BF16", "F16", "F32"}) {
    for (std::uint32_t misalignment = 0; misalignment < 8; ++misalignment) {
      SCOPED_TRACE(std::string(dtype) + " + " + std::to_string(misalignment));
      write_safetensors(file(), tensors, dtype, misalignment);
      const Checkpoint checkpoint = Checkpoint::open(folder_.path());
      ASSERT_EQ(checkpoint.tensors().size(), tensors.size());
      for (const auto& [name, expected] : tensors) {
        const TensorInfo& tensor = checkpoint.require(name, expected.shape);
        ASSERT_EQ(tensor.num_elements, expected.values.size());
        std::vector<float> floats(expected.values.size());
        checkpoint.read(tensor, 0, floats.size(), floats.data());
        EXPECT_EQ(floats, expected.values);
        std::vector<bf16> halves(expected.values.size());
        checkpoint.read(tensor, 0, halves.size(), halves.data());
        for (std::size_t i = 0; i < halves.size(); ++i) {
          EXPECT_EQ(halves[i].to_float(), expected.values[i]);
        }
      }
      std::array<float, 2> part{};
      checkpoint.read(checkpoint.tensors().at("b"), 1, 2, part.data());
      EXPECT_THAT(part, ElementsAre(96.0F, -1.5F));
    }
  }
}

TEST_F(SafetensorsTest, HalfPrecisionIsExactEverywhere) {
  // One, largest, smallest normal, largest and smallest subnormal, negative zero, infinity, NaN.
  const std::array<std::uint16_t, 8> halves = {0x3c00, 0x7bff, 0x0400, 0x03ff,
                                               0x8001, 0x8000, 0xfc00, 0x7e00};
  std::string bytes =
      raw_safetensors(R"({"h":{"dtype":"F16","shape":[8],"data_offsets":[0,16]}})", sizeof(halves));
  std::memcpy(bytes.data() + bytes.size() - sizeof(halves), halves.data(), sizeof(halves));
  write_file(file(), bytes);
  const Checkpoint checkpoint = Checkpoint::open_file(file());
  std::array<float, 8> values{};
  checkpoint.read(checkpoint.tensors().at("h"), 0, 8, values.data());
  EXPECT_EQ(values[0], 1.0F);
  EXPECT_EQ(values[1], 65504.0F);
  EXPECT_EQ(values[2], 0x1p-14F);
  EXPECT_EQ(values[3], 1023 * 0x1p-24F);
  EXPECT_EQ(values[4], -0x1p-24F);
  EXPECT_TRUE(values[5] == 0.0F && std::signbit(values[5]));
  EXPECT_EQ(values[6], -std::numeric_limits<float>::infinity());
  EXPECT_TRUE(std::isnan(values[7]));
}

TEST_F(SafetensorsTest, Float32RoundsToNearestEven) {
  write_safetensors(file(), {{"x", {{3}, {0x1.01p0F, 0x1.03p0F, 0x1.010002p0F}}}}, "F32");
  const Checkpoint checkpoint = Checkpoint::open_file(file());
  std::array<bf16, 3> values{};
  checkpoint.read(checkpoint.tensors().at("x"), 0, 3, values.data());
  EXPECT_EQ(values[0].to_float(), 0x1.00p0F);  // a tie, to even
  EXPECT_EQ(values[1].to_float(), 0x1.04p0F);  // a tie, to even
  EXPECT_EQ(values[2].to_float(), 0x1.02p0F);
}

TEST_F(SafetensorsTest, RangesLongerThanAMappingAreWhole) {
  TinyTensor tensor{{3, 1 << 20}, std::vector<float>(std::size_t{3} << 20)};
  for (std::size_t i = 0; i < tensor.values.size(); ++i) {
    tensor.values[i] = static_cast<float>(i);  // below 2^24: exact
  }
  write_safetensors(file(), {{"long", tensor}}, "F32", 3);
  const Checkpoint checkpoint = Checkpoint::open_file(file());
  std::vector<float> values(tensor.values.size());
  checkpoint.read(checkpoint.tensors().at("long"), 0, values.size(), values.data());
  EXPECT_EQ(values, tensor.values);
}

TEST_F(SafetensorsTest, RequireNamesTensorAndShapes) {
  write_safetensors(file(), {{"a", {{2, 3}, std::vector<float>(6)}}});
  const Checkpoint checkpoint = Checkpoint::open_file(file());
  const auto error_of_require = [&](const char* name, std::vector<std::uint64_t> shape) {
    return error_of([&] { checkpoint.require(name, shape); });
  };
  EXPECT_EQ(error_of_require("a", {2, 3}), "no error");
  EXPECT_THAT(error_of_require("b", {2, 3}), HasSubstr("tensor 'b' is missing"));
  EXPECT_THAT(error_of_require("a", {3, 2}),
              HasSubstr("tensor 'a' has shape [2, 3], config.json needs [3, 2]"));
  EXPECT_THAT(error_of_require("a", {6}), HasSubstr("has shape [2, 3], config.json needs [6]"));
  EXPECT_THAT(error_of_require("a", {2, 3, 1}), HasSubstr("config.json needs [2, 3, 1]"));
}

TEST_F(SafetensorsTest, TypesThatAreNoWeightsAreKnownButRefused) {
  write_file(file(),
             raw_safetensors(R"({"i":{"dtype":"I64","shape":[1],"data_offsets":[0,8]},)"
                             R"("f":{"dtype":"F8_E4M3","shape":[4],"data_offsets":[8,12]}})",
                             12));
  const Checkpoint checkpoint = Checkpoint::open_file(file());
  EXPECT_THAT(error_of([&] { checkpoint.require("f", std::array<std::uint64_t, 1>{4}); }),
              HasSubstr("tensor 'f' has dtype F8_E4M3, which can't be served; use a checkpoint"));
}

TEST_F(SafetensorsTest, FilesThatAreTooShort) {
  EXPECT_THAT(error_of_bytes(""), HasSubstr("0 bytes are too few for a safetensors file"));
  EXPECT_THAT(error_of_bytes("1234567"), HasSubstr("7 bytes are too few"));
  EXPECT_THAT(error_of_bytes(std::string(8, '\0')), HasSubstr("the header is not JSON"));
  write_safetensors(file(), {{"w", {{4}, std::vector<float>(4)}}});
  const std::string whole = test::read_file(file());
  EXPECT_THAT(error_of_bytes(whole.substr(0, whole.size() - 1)),
              AllOf(HasSubstr("model.safetensors: tensor 'w'"), HasSubstr("truncated file")));
  EXPECT_THAT(error_of_bytes(whole.substr(0, 40)), HasSubstr("does not fit the file's 40 bytes"));
}

TEST_F(SafetensorsTest, AbsurdHeaderLengths) {
  for (const char* length : {"\xff\xff\xff\xff\xff\xff\xff\xff", "\xff\xff\xff\xff\xff\xff\xff\x7f",
                             "\x01\xe1\xf5\x05\x01\x01\x01\x01"}) {
    EXPECT_THAT(error_of_bytes(std::string(length, 8) + "{}"),
                HasSubstr("does not fit the file's 10 bytes"));
  }
}

TEST_F(SafetensorsTest, FileThatShrinksAfterwards) {
  write_safetensors(file(), {{"w", {{4096}, std::vector<float>(4096)}}});
  const Checkpoint checkpoint = Checkpoint::open_file(file());
  std::filesystem::resize_file(file(), 100);
  std::vector<float> values(4096);
  EXPECT_THAT(
      error_of([&] { checkpoint.read(checkpoint.tensors().at("w"), 0, 4096, values.data()); }),
      HasSubstr("became shorter while it was read"));
}

struct BadHeader {
  const char* name;
  const char* header;
  std::uint64_t num_data_bytes;
  const char* error;
};

void PrintTo(const BadHeader& bad, std::ostream* out) { *out << bad.name; }

class BadHeaderTest : public SafetensorsTest, public ::testing::WithParamInterface<BadHeader> {};

TEST_P(BadHeaderTest, IsRefusedByName) {
  EXPECT_THAT(error_of_header(GetParam().header, GetParam().num_data_bytes),
              AllOf(HasSubstr("model.safetensors: "), HasSubstr(GetParam().error)));
}

const BadHeader kBadHeaders[] = {
    {"NotJson", "not json", 0, "the header is not JSON"},
    {"NotUtf8", "{\"\xff\":1}", 0, "the header is not JSON"},
    {"NotAnObject", "[1, 2]", 0, "the header is not a JSON object"},
    {"TooDeep", R"({"a":{"shape":[[[[[[1]]]]]]}})", 0, "nested too deeply"},
    {"DuplicateTensor",
     R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
     R"("a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})",
     2, "tensor 'a' is a duplicate: the header names it twice"},
    {"DuplicateKey", R"({"a":{"dtype":"U8","dtype":"I8","shape":[1],"data_offsets":[0,1]}})", 1,
     "key 'dtype' is a duplicate"},
    {"EntryNotAnObject", R"({"a":3})", 0, "tensor 'a': its entry in the header is not an object"},
    {"NoType", R"({"a":{"shape":[1],"data_offsets":[0,1]}})", 1,
     "tensor 'a': its `dtype` is not a string"},
    {"UnknownType", R"({"a":{"dtype":"F7","shape":[1],"data_offsets":[0,1]}})", 1,
     "tensor 'a': unknown dtype 'F7', the known ones are BOOL, U8"},
    {"NoShape", R"({"a":{"dtype":"U8","data_offsets":[0,1]}})", 1, "tensor 'a': its `shape` is"},
    {"NegativeDimension", R"({"a":{"dtype":"U8","shape":[-1],"data_offsets":[0,1]}})", 1,
     "tensor 'a': its `shape` is not a list of non-negative integers"},
    {"FractionalDimension", R"({"a":{"dtype":"U8","shape":[1.0],"data_offsets":[0,1]}})", 1,
     "tensor 'a': its `shape` is not a list of non-negative integers"},
    {"TooManyDimensions",
     R"({"a":{"dtype":"U8","shape":[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1],"data_offsets":[0,1]}})", 1,
     "tensor 'a': 17 dimensions are too many"},
    {"OneOffset", R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0]}})", 1,
     "tensor 'a': its `data_offsets` is not a list of two"},
    {"BackwardRange", R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[1,0]}})", 1,
     "tensor 'a': bytes 1..0 lie outside"},
    {"RangeBeyondTheEnd", R"({"a":{"dtype":"U8","shape":[8],"data_offsets":[0,8]}})", 7,
     "tensor 'a': bytes 0..8 lie outside the file's 7 bytes of data"},
    {"RangeNearOverflow",
     R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[18446744073709551614,18446744073709551615]}})",
     1, "tensor 'a': bytes 18446744073709551614..18446744073709551615 lie outside"},
    {"WrongSize", R"({"a":{"dtype":"F32","shape":[2,2],"data_offsets":[0,12]}})", 12,
     "tensor 'a': F32 [2, 2] needs 16 bytes, its range 0..12 has 12"},
    {"ProductOverflow",
     R"({"a":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0]}})", 0,
     "tensor 'a': shape [4294967296, 4294967296] is too large"},
    {"ByteCountOverflow",
     R"({"a":{"dtype":"F64","shape":[4611686018427387904],"data_offsets":[0,0]}})", 0,
     "tensor 'a': shape [4611686018427387904] is too large"},
    {"Overlap",
     R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},)"
     R"("b":{"dtype":"U8","shape":[4],"data_offsets":[3,7]}})",
     7, "tensor 'b' overlaps tensor 'a'"},
    {"SameRange",
     R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},)"
     R"("b":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}})",
     4, "overlaps tensor"},
    {"Hole",
     R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
     R"("b":{"dtype":"U8","shape":[1],"data_offsets":[2,3]}})",
     3, "1 bytes before tensor 'b' belong to no tensor"},
    {"BytesLeftOver", R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})", 3,
     "2 bytes at the end belong to no tensor"},
};

INSTANTIATE_TEST_SUITE_P(Header, BadHeaderTest, ::testing::ValuesIn(kBadHeaders),
                         [](const auto& row) { return std::string(row.param.name); });

class ShardedTest : public ::testing::Test {
 protected:
  ShardedTest() {
    write_safetensors(folder_.path() / "one.safetensors", {{"a", {{1}, {1.0F}}}});
    write_safetensors(folder_.path() / "two.safetensors",
                      {{"b", {{1}, {2.0F}}}, {"c", {{1}, {3.0F}}}});
  }
  std::string error_of_index(const std::string& weight_map) const {
    write_file(folder_.path() / "model.safetensors.index.json",
               R"({"metadata":{},"weight_map":)" + weight_map + "}");
    return error_of([&] { Checkpoint::open(folder_.path()); });
  }

  TemporaryFolder folder_;
};

TEST_F(ShardedTest, ReadsFromTheRightFile) {
  ASSERT_EQ(error_of_index(R"({"a":"one.safetensors","b":"two.safetensors",)"
                           R"("c":"two.safetensors"})"),
            "no error");
  const Checkpoint checkpoint = Checkpoint::open(folder_.path());
  for (const auto& [name, expected] : {std::pair{"a", 1.0F}, {"b", 2.0F}, {"c", 3.0F}}) {
    float value = 0.0F;
    checkpoint.read(checkpoint.tensors().at(name), 0, 1, &value);
    EXPECT_EQ(value, expected);
  }
}

TEST_F(ShardedTest, IndexThatDisagreesWithTheShards) {
  EXPECT_THAT(error_of_index(R"({"a":"one.safetensors","b":"gone.safetensors"})"),
              HasSubstr("tensor 'b' is said to be in 'gone.safetensors', which is missing"));
  EXPECT_THAT(error_of_index(R"({"a":"one.safetensors","b":"one.safetensors"})"),
              HasSubstr("tensor 'b' is said to be in 'one.safetensors', which does not hold it"));
  EXPECT_THAT(error_of_index(R"({"a":"two.safetensors","b":"one.safetensors"})"),
              HasSubstr("tensor 'a' is said to be in 'two.safetensors', which does not hold it"));
}

TEST_F(ShardedTest, TensorInTwoShards) {
  write_safetensors(folder_.path() / "two.safetensors", {{"a", {{1}, {2.0F}}}});
  EXPECT_THAT(error_of_index(R"({"a":"one.safetensors","b":"two.safetensors"})"),
              AllOf(HasSubstr("two.safetensors: tensor 'a' is a duplicate"),
                    HasSubstr("one.safetensors holds it as well")));
}

TEST_F(ShardedTest, MalformedIndex) {
  EXPECT_THAT(error_of_index("[]"), HasSubstr("weight_map: is no object"));
  EXPECT_THAT(error_of_index("{}"), HasSubstr("weight_map: is no object"));
  EXPECT_THAT(error_of_index("{"), HasSubstr("model.safetensors.index.json: not valid JSON"));
  for (const char* file : {"3", "\"\"", R"("../one.safetensors")", R"("/etc/passwd")", "\"..\""}) {
    EXPECT_THAT(error_of_index(std::string(R"({"a":)") + file + "}"),
                HasSubstr("weight_map.'a': does not name a file of this folder"))
        << file;
  }
}

TEST(CheckpointTest, FolderWithoutACheckpoint) {
  const TemporaryFolder folder;
  EXPECT_THAT(error_of([&] { Checkpoint::open(folder.path()); }),
              HasSubstr("holds neither model.safetensors nor model.safetensors.index.json"));
}

}  // namespace
}  // namespace fastfd::model
