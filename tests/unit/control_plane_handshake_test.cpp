#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "fastfd/control_plane/messages.h"

namespace fastfd::control_plane {
namespace {

using testing::AllOf;
using testing::HasSubstr;

Contract example_contract() {
  Contract contract;
  contract.model_fingerprint = 0xabcdef;
  contract.num_attention_servers = 2;
  contract.num_ffn_servers = 3;
  contract.max_lane_rows = 512;
  contract.hidden_dim = 256;
  contract.max_routes_per_row = 4;
  contract.num_layers = 8;
  contract.num_pages = 2048;
  contract.page_size = 16;
  contract.num_slots = 70;
  contract.max_model_len = 2048;
  contract.num_experts = 16;
  return contract;
}

Registration example_registration() {
  Registration registration;
  registration.rank = 1;
  registration.contract = example_contract();
  return registration;
}

TEST(Handshake, EqualContractsMayJoin) {
  auto registration = example_registration();
  EXPECT_EQ(why_refused(example_contract(), registration), "");
  registration.role = Role::kFfn;
  registration.rank = 2;
  EXPECT_EQ(why_refused(example_contract(), registration), "");
}

struct Difference {
  const char* name;
  std::function<void(Contract&)> change;
  const char* theirs;
  const char* ours;
};

class HandshakeDifference : public testing::TestWithParam<Difference> {};

TEST_P(HandshakeDifference, IsRefusedNamingBothValues) {
  auto registration = example_registration();
  GetParam().change(registration.contract);
  const auto reason = why_refused(example_contract(), registration);
  EXPECT_THAT(reason, HasSubstr(std::string(GetParam().name) + ": the server has " +
                                GetParam().theirs + ", the coordinator " + GetParam().ours));
  EXPECT_THAT(reason, HasSubstr("same cluster file"));
}

INSTANTIATE_TEST_SUITE_P(
    EveryLimit, HandshakeDifference,
    testing::Values(
        Difference{"model fingerprint", [](Contract& c) { c.model_fingerprint = 1; },
                   "0000000000000001", "0000000000abcdef"},
        Difference{"attention servers", [](Contract& c) { c.num_attention_servers = 3; }, "3", "2"},
        Difference{"FFN servers", [](Contract& c) { c.num_ffn_servers = 2; }, "2", "3"},
        Difference{"rows of a lane", [](Contract& c) { c.max_lane_rows = 256; }, "256", "512"},
        Difference{"hidden dimension", [](Contract& c) { c.hidden_dim = 128; }, "128", "256"},
        Difference{"routes of a row", [](Contract& c) { c.max_routes_per_row = 2; }, "2", "4"},
        Difference{"layers", [](Contract& c) { c.num_layers = 9; }, "9", "8"},
        Difference{"dispatch dtype", [](Contract& c) { c.dispatch_dtype = DType::kFloat32; },
                   "float32", "bfloat16"},
        Difference{"combine dtype", [](Contract& c) { c.combine_dtype = DType::kBFloat16; },
                   "bfloat16", "float32"},
        Difference{"precision", [](Contract& c) { c.precision = Precision::kFloat32; }, "float32",
                   "bf16"},
        Difference{"KV pages", [](Contract& c) { c.num_pages = 1; }, "1", "2048"},
        Difference{"page size", [](Contract& c) { c.page_size = 32; }, "32", "16"},
        Difference{"KV dtype", [](Contract& c) { c.kv_dtype = DType::kFloat16; }, "float16",
                   "bfloat16"},
        Difference{"sequence slots", [](Contract& c) { c.num_slots = 71; }, "71", "70"},
        Difference{"max_model_len", [](Contract& c) { c.max_model_len = 4096; }, "4096", "2048"},
        Difference{"experts", [](Contract& c) { c.num_experts = 8; }, "8", "16"},
        Difference{"expert replicas", [](Contract& c) { c.expert_replicas = 2; }, "2", "1"}));

TEST(Handshake, AnotherProtocolVersionIsTheOnlyReasonGiven) {
  auto registration = example_registration();
  registration.contract.protocol_version = kProtocolVersion + 1;
  registration.contract.page_size = 99;
  const auto reason = why_refused(example_contract(), registration);
  EXPECT_THAT(
      reason,
      AllOf(HasSubstr(fmt::format("protocol version: the server speaks {}, the coordinator {}",
                                  kProtocolVersion + 1, kProtocolVersion)),
            testing::Not(HasSubstr("page size"))));
}

TEST(Handshake, EveryDifferenceIsNamedAtOnce) {
  auto registration = example_registration();
  registration.contract.page_size = 32;
  registration.contract.num_pages = 7;
  EXPECT_THAT(
      why_refused(example_contract(), registration),
      AllOf(HasSubstr("page size: the server has 32"), HasSubstr("KV pages: the server has 7")));
}

TEST(Handshake, RegisteredPagesMustHoldTheLongestSequence) {
  auto contract = example_contract();
  contract.num_pages = 0;  // each server's own
  auto registration = example_registration();
  registration.contract = contract;
  registration.num_pages = 128;
  EXPECT_EQ(why_refused(contract, registration), "");
  registration.num_pages = 127;
  EXPECT_EQ(why_refused(contract, registration),
            "KV pages: the server has room for 127 of 16 tokens, which hold no sequence of "
            "max_model_len = 2048; raise attention.gpu_memory_fraction or lower "
            "model.max_model_len");
  registration.num_pages = kMaxPages;
  EXPECT_EQ(why_refused(contract, registration), "");
  registration.num_pages = kMaxPages + 1;
  EXPECT_THAT(why_refused(contract, registration), HasSubstr("at most 16777216 are possible"));
  registration.num_pages = 0;
  EXPECT_THAT(why_refused(contract, registration), HasSubstr("the server has room for 0 of 16"));
  registration.role = Role::kFfn;
  EXPECT_EQ(why_refused(contract, registration), "") << "it has no KV cache";
}

TEST(Handshake, PagesOfTheClusterFileAreNotLeftToTheServer) {
  auto registration = example_registration();
  registration.num_pages = 1;
  EXPECT_EQ(why_refused(example_contract(), registration), "");
  registration.contract.num_pages = 0;
  EXPECT_THAT(why_refused(example_contract(), registration),
              HasSubstr("KV pages: the server has 0, the coordinator 2048"));
}

TEST(Handshake, ARankOutOfRangeIsRefused) {
  auto registration = example_registration();
  registration.rank = 2;
  EXPECT_THAT(why_refused(example_contract(), registration),
              HasSubstr("rank: the server has 2, the coordinator expects attention ranks 0..1"));
  registration.role = Role::kCoordinator;
  EXPECT_THAT(why_refused(example_contract(), registration), HasSubstr("role"));
}

}  // namespace
}  // namespace fastfd::control_plane
