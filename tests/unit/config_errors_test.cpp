#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <ostream>
#include <string>
#include <vector>

#include "fastfd/config/cluster_config.h"

namespace fastfd::config {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

const std::string kModel = FASTFD_SOURCE_DIR "/models/atlas-moe";
constexpr HostFacts kHost{.num_cores = 4, .has_bf16 = true};

std::string error_of(const std::string& text, const HostFacts& host = kHost) {
  try {
    parse_cluster_text(text, "c.yaml", host);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

/// Rows of one bad file each: what follows the model's line, and the whole message but "c.yaml:".
struct BadFile {
  const char* name;
  const char* text;
  const char* error;
};

void PrintTo(const BadFile& file, std::ostream* out) { *out << file.name; }

class BadFileTest : public ::testing::TestWithParam<BadFile> {};

TEST_P(BadFileTest, NamesLineKeyFaultAndRemedy) {
  const auto& [name, text, error] = GetParam();
  EXPECT_EQ(error_of("model: {path: " + kModel + "}\n" + text), std::string("c.yaml:") + error);
}

const BadFile kBadFiles[] = {
    {"UnknownSection", "atention: {servers: 1}",
     "2: atention: unknown key; did you mean 'attention'?"},
    {"UnknownKey", "ffn:\n  server: 1", "3: ffn.server: unknown key; did you mean 'servers'?"},
    {"UnknownNestedKey", "attention:\n  kv_cache:\n    pagesize: 16",
     "4: attention.kv_cache.pagesize: unknown key; did you mean 'page_size'?"},
    {"UnknownKeyLikeNoOther", "transport: {quux_frobnicate: 1}",
     "2: transport.quux_frobnicate: unknown key; the keys here are kind, spin_us, combine_dtype, "
     "dispatch_dtype"},
    {"DuplicateKey", "ffn: {servers: 1}\nscheduler: {plan_ahead: 1}\nffn: {servers: 2}",
     "4: ffn: given twice, first on line 2; keep one of the two"},
    {"DuplicateNestedKey", "ffn:\n  servers: 1\n  servers: 2",
     "4: ffn.servers: given twice, first on line 3; keep one of the two"},
    {"TextForNumber", "ffn: {servers: two}",
     "2: ffn.servers: expected an integer from 1 to 64, got 'two'; write a whole number in that "
     "range"},
    {"FractionForNumber", "ffn: {servers: 1.5}",
     "2: ffn.servers: expected an integer from 1 to 64, got '1.5'; write a whole number in that "
     "range"},
    {"NegativeNumber", "ffn: {servers: -1}",
     "2: ffn.servers: expected an integer from 1 to 64, got '-1'; write a whole number in that "
     "range"},
    {"QuotedNumber", "ffn: {servers: \"2\"}",
     "2: ffn.servers: expected an integer from 1 to 64, got the text \"2\"; remove the quotes"},
    {"HugeNumber", "ffn: {servers: 99999999999999999999999}",
     "2: ffn.servers: expected an integer from 1 to 64, got '99999999999999999999999'; write a "
     "whole number in that range"},
    {"ListForNumber", "ffn: {servers: [1, 2]}",
     "2: ffn.servers: expected an integer from 1 to 64, got a list; give one value or remove the "
     "key"},
    {"NothingForNumber", "ffn: {servers: }",
     "2: ffn.servers: expected an integer from 1 to 64, got nothing; give one value or remove the "
     "key"},
    {"ScalarForSection", "ffn: 3",
     "2: ffn: expected a map of keys, got '3'; write it as `ffn: {key: value}`"},
    {"EmptySection",
     "ffn:", "2: ffn: expected a map of keys, got nothing; write it as `ffn: {key: value}`"},
    {"ListAsKey", "? [a, b]\n: 1", "2: a key must be plain text; remove the brackets around it"},
    {"NoBool", "attention: {kv_cache: {prefix_cache: yes}}",
     "2: attention.kv_cache.prefix_cache: expected true or false, got 'yes'; write one of the "
     "two"},
    {"NoAttentionServers", "attention: {servers: 0}",
     "2: attention.servers: 0 is out of range; use an integer from 1 to 64"},
    {"TooManyServers", "ffn: {servers: 65}",
     "2: ffn.servers: 65 is out of range; use an integer from 1 to 64"},
    {"MoreServersThanExperts", "ffn: {servers: 17}",
     "2: ffn.servers: 17 servers for the model's 16 experts leave some without one; use at most "
     "16"},
    {"NoAddress", "coordinator: {http: 8000}",
     "2: coordinator.http: '8000' is no address; write \"host:port\" with a port from 0 to 65535, "
     "as in \"127.0.0.1:8000\" or \"[::1]:8000\""},
    {"PortTooLarge", "coordinator: {http: 'localhost:65536'}",
     "2: coordinator.http: 'localhost:65536' is no address; write \"host:port\" with a port from 0 "
     "to 65535, as in \"127.0.0.1:8000\" or \"[::1]:8000\""},
    {"SamePortTwice", "coordinator:\n  http: 127.0.0.1:9000\n  control: 0.0.0.0:9000",
     "4: coordinator.control: port 9000 is coordinator.http's as well; give each its own, for "
     "example \"0.0.0.0:9001\""},
    {"PortOfTheDefaultTaken", "coordinator: {http: 'localhost:7070'}",
     "2: coordinator.control: port 7070 is coordinator.http's as well; give each its own, for "
     "example \"127.0.0.1:7071\""},
    {"AnyControlPort", "coordinator: {control: '127.0.0.1:0'}",
     "2: coordinator.control: port 0 (any free port) can't be told to server processes in "
     "advance; give a port, or use transport.kind: inproc"},
    {"PageSizeNoPowerOfTwo", "attention: {kv_cache: {page_size: 24}}",
     "2: attention.kv_cache.page_size: 24 is not a power of two; use 16 or 32"},
    {"PoolTooSmall", "attention: {kv_cache: {pages: 100, page_size: 16}}",
     "2: attention.kv_cache.pages: 100 pages x 16 tokens = 1600 tokens hold no sequence of "
     "model.max_model_len = 2048; use at least 128 pages or lower model.max_model_len to 1600"},
    {"MoreThreadsThanCores", "attention: {threads: 5}",
     "2: attention.threads: 5 threads for one server, but this host has 4 cores; use at most 4"},
    {"MoreThreadsThanSense", "attention: {servers: 16, threads: 4}\nffn: {servers: 1}",
     "2: attention.servers: 16 attention x 4 threads + 1 ffn x 1 threads = 65 server threads on 4 "
     "cores; use at most 64"},
    {"PlanAheadTooFar", "scheduler: {plan_ahead: 4}",
     "2: scheduler.plan_ahead: 4 is out of range; use `auto` or an integer from 1 to 3"},
    {"NoPlanAhead", "scheduler: {plan_ahead: 0}",
     "2: scheduler.plan_ahead: 0 is out of range; use `auto` or an integer from 1 to 3"},
    {"TooManyLanes", "scheduler: {microbatches: 5}",
     "2: scheduler.microbatches: 5 is out of range; use `auto` or an integer from 1 to 4"},
    {"MisspeltAuto", "scheduler: {microbatches: automatic}",
     "2: scheduler.microbatches: expected `auto` or an integer from 1 to 4, got 'automatic'; write "
     "a whole number in that range"},
    {"ChunkLargerThanStep", "scheduler: {max_batched_tokens: 128, prefill_chunk: 129}",
     "2: scheduler.prefill_chunk: a chunk of 129 tokens does not fit in a step of "
     "max_batched_tokens = 128; use at most 128 or raise max_batched_tokens"},
    {"DecodeRowsDontFit", "scheduler: {max_batched_tokens: 63, prefill_chunk: 8}",
     "2: scheduler.max_batched_tokens: 63 rows of a step don't hold one decode row for each of "
     "max_sequences = 64; use at least 64 or lower max_sequences"},
    {"MoreReplicasThanServers", "ffn: {servers: 2, expert_replicas: 3}",
     "2: ffn.expert_replicas: 3 copies of an expert need as many FFN servers, there are 2; use at "
     "most 2 or raise ffn.servers"},
    {"UnknownDevice", "ffn: {device: abacus}",
     "2: ffn.device: 'abacus' is not known; use cpu, a GPU as in cuda:0, or a range of GPUs as in "
     "cuda:0-3"},
    {"GpuWithoutIndex", "ffn: {device: cuda}",
     "2: ffn.device: 'cuda' is no GPU's name; use cpu, a GPU as in cuda:0, or a range of GPUs as "
     "in "
     "cuda:0-3"},
    {"GpusBackwards", "ffn: {device: 'cuda:3-0'}",
     "2: ffn.device: 'cuda:3-0' is no GPU's name; use cpu, a GPU as in cuda:0, or a range of GPUs "
     "as in cuda:0-3"},
    {"GpuIndexWithMore", "ffn: {device: 'cuda:0,1'}",
     "2: ffn.device: 'cuda:0,1' is no GPU's name; use cpu, a GPU as in cuda:0, or a range of GPUs "
     "as in cuda:0-3"},
    {"Rocm", "ffn: {device: rocm}",
     "2: ffn.device: 'rocm' is not supported; use cpu, a GPU as in cuda:0, or a range of GPUs as "
     "in "
     "cuda:0-3"},
    {"SmShareOnCpu", "ffn: {sm_share: 0.5}",
     "2: ffn.sm_share: is a part of a GPU, but ffn.device is cpu; remove it, or say ffn.device: "
     "cuda:0"},
    {"MemoryFractionOnCpu", "attention: {device: cpu, gpu_memory_fraction: 0.5}",
     "2: attention.gpu_memory_fraction: is a part of a GPU, but attention.device is cpu; remove "
     "it, "
     "or say attention.device: cuda:0"},
    {"NoSmShare", "attention: {device: 'cuda:1'}\nffn: {device: 'cuda:0', sm_share: 0}",
     "3: ffn.sm_share: 0 is out of range; use `auto` or a number above 0 and up to 1"},
    {"MoreThanAllSms", "attention: {device: 'cuda:1'}\nffn: {device: 'cuda:0', sm_share: 1.5}",
     "3: ffn.sm_share: 1.5 is out of range; use `auto` or a number above 0 and up to 1"},
    {"NotANumberOfSms", "attention: {device: 'cuda:1'}\nffn: {device: 'cuda:0', sm_share: nan}",
     "3: ffn.sm_share: nan is out of range; use `auto` or a number above 0 and up to 1"},
    {"SmSharePercent", "attention: {device: 'cuda:1'}\nffn: {device: 'cuda:0', sm_share: 50%}",
     "3: ffn.sm_share: expected `auto` or a number above 0 and up to 1, got '50%'; write it as "
     "0.5"},
    {"SharesOfOneGpuSumToMore",
     "attention: {device: 'cuda:0', sm_share: 0.5}\nffn: {device: 'cuda:0'}",
     "3: ffn.sm_share: 1 attention x 0.5 + 1 ffn x 1 = 1.50 of cuda:0; let the servers of a GPU "
     "sum "
     "to at most 1"},
    {"MemoryOfOneGpuSumsToMore",
     "attention: {device: 'cuda:0-1', servers: 3, gpu_memory_fraction: 0.6}\n"
     "ffn: {device: 'cuda:2'}",
     "2: attention.gpu_memory_fraction: 2 attention x 0.6 + 0 ffn x 0.9 = 1.20 of cuda:0; let the "
     "servers of a GPU sum to at most 1"},
    {"TransportNotBuilt", "transport: {kind: ucx}",
     "2: transport.kind: 'ucx' is not in this build; use one of auto, inproc, shm, cuda_ipc, nccl"},
    {"UnknownTransport", "transport: {kind: pigeon}",
     "2: transport.kind: 'pigeon' is not known; use one of auto, inproc, shm, cuda_ipc, nccl"},
    {"UnknownCombineType", "transport: {combine_dtype: fp4}",
     "2: transport.combine_dtype: 'fp4' is not known; use one of auto, float32, bf16"},
    {"Fp8Cache", "attention: {kv_cache: {dtype: fp8}}",
     "2: attention.kv_cache.dtype: fp8 needs the GPU kernels, but the pools are on the CPU; use "
     "auto, bf16 or float32, or put both pools on GPUs, as in attention.device: cuda:0"},
    {"Fp8CacheByItsOtherName", "attention: {kv_cache: {dtype: fp8_e4m3}}",
     "2: attention.kv_cache.dtype: 'fp8_e4m3' is called fp8; use one of auto, bf16, float32, fp8"},
    {"AnotherFp8Cache", "attention: {kv_cache: {dtype: fp8_e5m2}}",
     "2: attention.kv_cache.dtype: 'fp8_e5m2' is not supported; use one of auto, bf16, float32, "
     "fp8"},
    {"NoPages", "attention: {kv_cache: {pages: 0}}",
     "2: attention.kv_cache.pages: 0 is out of range; use `auto` or an integer from 1 to "
     "16777216"},
    {"Fp8RowsOnCpu", "transport: {dispatch_dtype: fp8}",
     "2: transport.dispatch_dtype: fp8 needs the GPU kernels, but the pools are on the CPU; use "
     "auto, or put both pools on GPUs, as in attention.device: cuda:0"},
    {"RowsOfAnotherPrecision", "transport: {dispatch_dtype: float32}",
     "2: transport.dispatch_dtype: servers on the CPU send what model.precision = bf16 gives; use "
     "auto, or change model.precision"},
    {"CudaIpcOnCpu", "transport: {kind: cuda_ipc}",
     "2: transport.kind: cuda_ipc joins GPUs, but the pools are on the CPU; use auto or shm, or "
     "put "
     "both pools on GPUs, as in attention.device: cuda:0"},
    {"NcclOnCpu", "transport: {kind: nccl}",
     "2: transport.kind: nccl joins GPUs, but the pools are on the CPU; use auto or shm, or put "
     "both pools on GPUs, as in attention.device: cuda:0"},
    {"ShmOnGpus", "attention: {device: 'cuda:0'}\nffn: {device: 'cuda:1'}\ntransport: {kind: shm}",
     "4: transport.kind: shm joins CPU servers, but the pools are on GPUs; use auto or cuda_ipc on "
     "one host, nccl across hosts"},
    {"Float32CacheOnGpus",
     "attention: {device: 'cuda:0', kv_cache: {dtype: float32}}\nffn: {device: 'cuda:1'}",
     "2: attention.kv_cache.dtype: float32 is for the CPU: the GPU kernels cache bf16 or fp8; use "
     "auto, bf16 or fp8"},
    {"Float32RowsOnGpus",
     "attention: {device: 'cuda:0'}\nffn: {device: 'cuda:1'}\n"
     "transport: {dispatch_dtype: float32}",
     "4: transport.dispatch_dtype: float32 is for the CPU: the GPU kernels send bf16 or fp8; use "
     "auto, bf16 or fp8"},
    {"TooFewPagesOnGpus",
     "attention: {device: 'cuda:0', kv_cache: {pages: 1}}\nffn: {device: 'cuda:1'}",
     "2: attention.kv_cache.pages: 1 pages x 16 tokens = 16 tokens hold no sequence of "
     "model.max_model_len = 2048; use at least 128 pages or lower model.max_model_len to 16"},
    {"OnlyAttentionOnAGpu", "attention: {device: 'cuda:0-1'}",
     "2: attention.device: cuda:0-1 is a GPU, but ffn.device is cpu; put both pools on GPUs, as in "
     "ffn.device: cuda:0, or both on the CPU"},
    {"OnlyExpertsOnAGpu",
     "attention: {device: cpu}\nffn: {device: 'cuda:3'}\n"
     "transport: {kind: shm}",
     "3: ffn.device: cuda:3 is a GPU, but attention.device is cpu; put both pools on GPUs, as in "
     "attention.device: cuda:0, or both on the CPU"},
    {"GraphsNoBool", "scheduler: {graphs: auto}",
     "2: scheduler.graphs: expected true or false, got 'auto'; write one of the two"},
    {"UnknownLoop", "scheduler: {loop: eager}",
     "2: scheduler.loop: 'eager' is not known; use one of overlapped, plain"},
    {"HeartbeatTimeoutTooShort", "faults: {heartbeat_ms: 500, heartbeat_timeout_ms: 900}",
     "2: faults.heartbeat_timeout_ms: 900 ms is less than two heartbeats of 500 ms, one late "
     "message would lose a server; use at least 1000"},
    {"UnknownTopology", "topology: together",
     "2: topology: 'together' is not known; use one of disaggregated, colocated"},
    {"ColocatedHalvesDiffer", "topology: colocated\nattention: {servers: 2}",
     "2: topology: colocated: each rank is an attention and an FFN server, but there are 2 "
     "attention "
     "and 1 FFN servers; give attention.servers and ffn.servers the same number"},
    {"ColocatedOnSeveralDevices",
     "topology: colocated\nattention: {device: 'cuda:0'}\nffn: {device: 'cuda:1'}",
     "2: topology: colocated: both halves of a rank are on one device, but attention.device is "
     "cuda:0 and ffn.device cuda:1; give them the same"},
    {"ColocatedRanksOnTheCpu", "topology: colocated\nattention: {servers: 2}\nffn: {servers: 2}",
     "2: topology: colocated: 2 ranks exchange tokens by expert parallelism, which needs GPUs; use "
     "one server of each pool, or device: cuda:0"},
    {"ColocatedSmShares",
     "topology: colocated\nattention: {device: 'cuda:0', sm_share: 0.5}\n"
     "ffn: {device: 'cuda:0', sm_share: 0.25}",
     "4: ffn.sm_share: 0.25, but attention.sm_share is 0.5 and both halves of a co-located rank "
     "run "
     "on the same SMs; remove the key"},
    {"ColocatedNccl",
     "topology: colocated\nattention: {device: 'cuda:0'}\nffn: {device: 'cuda:0'}\n"
     "transport: {kind: nccl}",
     "5: transport.kind: nccl does not join co-located ranks; use auto"},
    {"UnknownLogLevel", "log_level: loud",
     "2: log_level: 'loud' is not known; use one of trace, debug, info, warn, error, off"},
    {"TwoDocuments", "---\nffn: {servers: 1}",
     "2: the cluster ends before this line; remove what follows, or the stray comma or `---`"},
    {"SecondDocumentWithoutEnd", "---\n,\n",  // yaml-cpp goes on for ever in it
     "2: the cluster ends before this line; remove what follows, or the stray comma or `---`"},
    {"StrayBracket", "ffn: {servers: 1}}\n",
     "2: not valid YAML: illegal flow end; check indentation, quotes and brackets at or before "
     "this "
     "line"},
    {"NotUtf8", "ffn: {servers: 1}\nlog_level: \xfc", "3: not UTF-8 text; save the file as UTF-8"},
    {"Utf16Surrogate", "log_level: \xed\xa0\x80", "2: not UTF-8 text; save the file as UTF-8"},
    {"HostWithSpaces", "coordinator: {http: 'my host:8000'}",
     "2: coordinator.http: 'my host:8000' is no address; write \"host:port\" with a port from 0 to "
     "65535, as in \"127.0.0.1:8000\" or \"[::1]:8000\""},
};

INSTANTIATE_TEST_SUITE_P(ClusterFile, BadFileTest, ::testing::ValuesIn(kBadFiles),
                         [](const auto& row) { return std::string(row.param.name); });

TEST(ConfigErrorsTest, ReportsEveryProblemByLine) {
  const std::string error = error_of("scheduler: {plan_ahead: 9}\nmodel: {path: " + kModel +
                                     ", quantization: awq}\nffn:\n  servers: 0\n  thread: 1\n");
  EXPECT_EQ(
      error,
      "c.yaml:1: scheduler.plan_ahead: 9 is out of range; use `auto` or an integer from 1 to 3\n"
      "c.yaml:2: model.quantization: 'awq' is not supported; use one of auto, none, fp8\n"
      "c.yaml:4: ffn.servers: 0 is out of range; use an integer from 1 to 64\n"
      "c.yaml:5: ffn.thread: unknown key; did you mean 'threads'?");
}

TEST(ConfigErrorsTest, TheModelsNumberFormatsAreThoseOfTheDevice) {
  const auto model = [](const std::string& keys) {
    return "model: {path: " + kModel + ", " + keys + "}\n";
  };
  EXPECT_EQ(
      error_of(model("quantization: fp8")),
      "c.yaml:1: model.quantization: fp8 needs the GPU kernels, but the pools are on the CPU; "
      "use auto or none, or put both pools on GPUs, as in attention.device: cuda:0");
  EXPECT_EQ(
      error_of(model("quantization: fp8_block")),
      "c.yaml:1: model.quantization: 'fp8_block' is not supported; use one of auto, none, fp8");
  EXPECT_EQ(error_of(model("precision: float32") +
                     "attention: {device: 'cuda:0'}\nffn: {device: 'cuda:1'}"),
            "c.yaml:1: model.precision: float32 is for the CPU: activations of the GPU kernels are "
            "bf16; use auto or bf16");
}

TEST(ConfigErrorsTest, ModelPathIsRequired) {
  EXPECT_THAT(error_of("ffn: {servers: 1}"), StartsWith("c.yaml:1: model.path: is missing; name"));
  EXPECT_THAT(error_of("\nmodel: {precision: bf16}"), StartsWith("c.yaml:2: model.path: is miss"));
  EXPECT_THAT(error_of("model: {path: ''}"),
              StartsWith("c.yaml:1: model.path: is empty; give a value"));
}

TEST(ConfigErrorsTest, ModelFolderMustHoldAModel) {
  EXPECT_THAT(error_of("model: {path: /nonexistent/m}"),
              StartsWith("c.yaml:1: model.path: no folder /nonexistent/m; give the path"));
  EXPECT_THAT(error_of("model:\n  path: " + kModel + "/config.json"),
              AllOf(StartsWith("c.yaml:2: model.path: "), HasSubstr("is not a folder; give")));
  EXPECT_THAT(error_of("model: {path: " FASTFD_SOURCE_DIR "/configs}"),
              HasSubstr("has no config.json; give a Hugging Face model folder"));
}

TEST(ConfigErrorsTest, LimitsOfTheModelHold) {
  EXPECT_EQ(error_of("model: {path: " + kModel + ", max_model_len: 4096}"),
            "c.yaml:1: model.max_model_len: 4096 tokens, but the model was made for 2048 "
            "(max_position_embeddings in config.json); use at most 2048");
}

TEST(ConfigErrorsTest, SyntaxErrorsNameTheLine) {
  EXPECT_THAT(error_of("model: {path: x}\nffn: {servers: 1\n"), StartsWith("c.yaml:3: not valid"));
  EXPECT_THAT(error_of("a: b\n\tc: d"), AllOf(StartsWith("c.yaml:2: not valid YAML: "),
                                              HasSubstr("check indentation, quotes")));
  EXPECT_THAT(error_of(std::string(20000, '[')), StartsWith("c.yaml:1: not valid YAML: "));
}

TEST(ConfigErrorsTest, EmptyFiles) {
  for (const char* text : {"", "\n\n", "# only a comment\n", "---\n", "~"}) {
    EXPECT_EQ(error_of(text), "c.yaml:1: the file is empty; it needs at least `model: {path: ...}`")
        << '"' << text << '"';
  }
  EXPECT_THAT(error_of("just text"), StartsWith("c.yaml:1: expected a map of keys, got 'just te"));
}

TEST(ConfigErrorsTest, ControlCharactersDontCutTheMessage) {
  EXPECT_EQ(error_of("model: {path: " + kModel + "}\nlog_level: \"a\\0b\\e[31m\""),
            "c.yaml:2: log_level: 'a\\x00b\\x1b[31m' is not known; use one of trace, debug, info, "
            "warn, error, off");
}

TEST(ConfigErrorsTest, FilesThatCantBeRead) {
  const auto error_of_file = [](const std::filesystem::path& file) -> std::string {
    try {
      load_cluster_file(file);
    } catch (const ConfigError& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_THAT(error_of_file("/nonexistent.yaml"),
              StartsWith("/nonexistent.yaml:1: no such file; give the path of a cluster file"));
  EXPECT_THAT(error_of_file("/"), StartsWith("/:1: can't be read as a file"));
  const auto fifo = std::filesystem::path(::testing::TempDir()) / "fastfd_fifo_cluster.yaml";
  std::filesystem::remove(fifo);
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  EXPECT_THAT(error_of_file(fifo), HasSubstr("can't be read as a file")) << "nobody writes to it";
  std::filesystem::remove(fifo);
  const auto large = std::filesystem::path(::testing::TempDir()) / "fastfd_large_cluster.yaml";
  std::ofstream(large) << std::string((1U << 20) + 1, '#');
  EXPECT_THAT(error_of_file(large), HasSubstr("bytes are too many for a cluster file"));
  std::filesystem::remove(large);
}

}  // namespace
}  // namespace fastfd::config
