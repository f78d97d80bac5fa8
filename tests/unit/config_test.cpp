#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "fastfd/config/cluster_config.h"

namespace fastfd::config {
namespace {

using ::testing::HasSubstr;

const std::filesystem::path kSourceDir = FASTFD_SOURCE_DIR;
const std::string kModel = (kSourceDir / "models" / "atlas-moe").string();
constexpr HostFacts kHost{.num_cores = 8, .has_bf16 = true};

ClusterConfig parse(const std::string& rest, const HostFacts& host = kHost) {
  return parse_cluster_text("model: {path: " + kModel + "}\n" + rest, "test.yaml", host);
}

TEST(ClusterConfigTest, QuickstartIsTheDocumentedCluster) {
  // The tests run in the source folder, which the file's relative model path needs.
  const auto config = load_cluster_file(kSourceDir / "configs" / "quickstart.yaml", {2, true});
  EXPECT_EQ(config.source, kSourceDir / "configs" / "quickstart.yaml");
  EXPECT_EQ(config.model.path, "models/atlas-moe");
  EXPECT_EQ(config.model.quantization, "none");
  EXPECT_EQ(config.model.precision, Precision::kBFloat16);
  EXPECT_EQ(config.model.max_model_len, 2048U);
  EXPECT_EQ(config.model.served_name, "atlas-moe");
  EXPECT_EQ(config.coordinator.http, (HostPort{"127.0.0.1", 8000}));
  EXPECT_EQ(config.coordinator.control, (HostPort{"127.0.0.1", 7070}));
  EXPECT_EQ(config.attention.servers, 2U);
  EXPECT_EQ(config.attention.kv_cache.pages, 2048U);
  EXPECT_EQ(config.ffn.servers, 2U);
  EXPECT_EQ(config.transport.kind, TransportKind::kShm);
  EXPECT_EQ(config.transport.spin_us, 0U);  // four server threads on two cores
  EXPECT_EQ(config.scheduler.microbatches, 0U);
  EXPECT_EQ(config.scheduler.plan_ahead, 2U);
  EXPECT_EQ(config.scheduler.prefill_chunk, 256U);
}

TEST(ClusterConfigTest, EveryShippedFileLoads) {
  int num_files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(kSourceDir / "configs")) {
    if (entry.path().extension() == ".yaml") {
      try {
        load_cluster_file(entry.path(), {2, true});
      } catch (const ConfigError& error) {
        // Its model may not have been fetched yet: that, and nothing else.
        EXPECT_EQ(entry.path().filename(), "smollm2.yaml") << error.what();
        EXPECT_EQ(std::string(error.what()),
                  entry.path().string() +
                      ":3: model.path: no folder models/smollm2-135m-instruct; give the path of a "
                      "Hugging Face model folder");
      }
      ++num_files;
    }
  }
  EXPECT_GE(num_files, 2);
}

TEST(ClusterConfigTest, KeysLeftOutGetTheDefaults) {
  const auto config = parse("");
  ClusterConfig expected;
  expected.source = "test.yaml";
  expected.model.path = kModel;
  expected.model.max_model_len = 2048;  // max_position_embeddings of the model
  expected.model.served_name = "atlas-moe";
  EXPECT_EQ(config.model.quantization, "auto");
  expected.transport.dispatch_dtype = DType::kBFloat16;
  EXPECT_EQ(config, expected);
}

TEST(ClusterConfigTest, ReadsEveryKey) {
  const auto config = parse_cluster_text(
      "model: {path: " + kModel +
          "/, quantization: none, precision: float32, max_model_len: 64, served_name: Atlas 1,\n"
          "  load_format: dummy, num_layers: 3}\n"
          "coordinator: {http: '[::1]:80', control: 'example.org:81', max_queued_requests: 7}\n"
          "attention:\n"
          "  servers: 3\n"
          "  device: cpu\n"
          "  threads: 2\n"
          "  kv_cache: {pages: 33, page_size: 8, dtype: bf16, prefix_cache: false}\n"
          "ffn: {servers: 4, device: cpu, threads: 5, expert_replicas: 2}\n"
          "transport: {kind: inproc, spin_us: 9, combine_dtype: bf16, dispatch_dtype: float32}\n"
          "scheduler: {loop: plain, microbatches: 3, plan_ahead: 1, max_sequences: 6,\n"
          "            max_batched_tokens: 12, prefill_chunk: 11, graphs: false}\n"
          "faults: {heartbeat_ms: 21, heartbeat_timeout_ms: 99, stall_timeout_ms: 101,\n"
          "         drain_timeout_ms: 0}\n"
          "log_level: debug\n",
      "all.yaml", kHost);
  ClusterConfig expected;
  expected.source = "all.yaml";
  expected.model = {kModel + "/",       "none", Precision::kFloat32, 64, "Atlas 1",
                    LoadFormat::kDummy, 3};
  expected.coordinator = {{"::1", 80}, {"example.org", 81}, 7};
  expected.attention = {3, {}, {}, 2, {33, 8, DType::kBFloat16, false}};
  expected.ffn = {4, {}, {}, 5, 2};
  expected.transport = {TransportKind::kInproc, 9, DType::kBFloat16, DType::kFloat32};
  expected.scheduler = {SchedulerLoop::kPlain, 3, 1, 6, 12, 11, false};
  expected.faults = {21, 99, 101, 0};
  expected.log_level = "debug";
  EXPECT_EQ(config, expected);
  EXPECT_EQ(config.coordinator.http.to_string(), "[::1]:80");
}

TEST(ClusterConfigTest, AutoPrecisionFollowsTheCpuAndTheCacheFollowsThePrecision) {
  const std::string autos =
      "attention: {kv_cache: {dtype: auto}}\ntransport: {spin_us: auto}\n"
      "scheduler: {microbatches: auto}\n";
  const auto with = parse(autos, {8, true});
  EXPECT_EQ(with.model.precision, Precision::kBFloat16);
  EXPECT_EQ(with.attention.kv_cache.dtype, DType::kBFloat16);
  EXPECT_EQ(with.scheduler.microbatches, 0U);
  const auto without = parse(autos, {8, false});
  EXPECT_EQ(without.model.precision, Precision::kFloat32);
  EXPECT_EQ(without.attention.kv_cache.dtype, DType::kFloat32);
  const auto mixed = parse_cluster_text("model: {path: " + kModel + ", precision: float32}\n" +
                                            "attention: {kv_cache: {dtype: bf16}}\n",
                                        "test.yaml", {8, true});
  EXPECT_EQ(mixed.attention.kv_cache.dtype, DType::kBFloat16);
}

TEST(ClusterConfigTest, AutoSpinsOnlyWithACoreToSpare) {
  const std::string four_threads = "attention: {servers: 2}\nffn: {servers: 1, threads: 2}\n";
  EXPECT_EQ(parse(four_threads, {5, true}).transport.spin_us, 50U);
  EXPECT_EQ(parse(four_threads, {4, true}).transport.spin_us, 0U);
}

TEST(ClusterConfigTest, GpusAreSharedByTheServersOnThem) {
  const auto one = parse("attention: {device: 'cuda:2'}\nffn: {device: 'cuda:1'}\n");
  EXPECT_EQ(one.attention.device, (DeviceChoice{true, 2, 1}));
  EXPECT_EQ(one.attention.gpu, (GpuShare{1.0, 0.9}));
  EXPECT_EQ(one.ffn.gpu, (GpuShare{1.0, 0.9}));
  EXPECT_TRUE(one.on_gpus());

  const auto shared = parse(
      "attention: {servers: 2, device: 'cuda:0', sm_share: 0.25}\n"
      "ffn: {servers: 1, device: 'cuda:0', sm_share: 0.5, gpu_memory_fraction: auto}\n");
  EXPECT_EQ(shared.attention.gpu.sm_share, 0.25);
  EXPECT_DOUBLE_EQ(shared.ffn.gpu.memory_fraction, 0.3);

  const auto spread = parse(
      "attention: {servers: 3, device: 'cuda:0-1', gpu_memory_fraction: 0.5}\n"
      "ffn: {servers: 2, device: 'cuda:4-5'}\n");
  EXPECT_EQ(spread.attention.device.to_string(), "cuda:0-1");
  EXPECT_EQ(spread.attention.device.gpu_of(2), 0U);
  EXPECT_EQ(spread.ffn.device.gpu_of(1), 5U);
  EXPECT_EQ(spread.ffn.gpu.memory_fraction, 0.9);
  for (const auto& config : {one, shared, spread}) {
    EXPECT_EQ(parse_cluster_text(to_yaml(config), "test.yaml", kHost), config) << to_yaml(config);
  }
}

// What follows the model's line of a cluster on GPUs.
std::string on_gpus(const std::string& attention = "", const std::string& rest = "") {
  return "attention: {device: 'cuda:0'" + attention + "}\nffn: {device: 'cuda:1'}\n" + rest;
}

TEST(ClusterConfigTest, AutoFollowsTheDevice) {
  const std::string autos =
      "transport: {kind: auto, combine_dtype: auto, dispatch_dtype: auto}\n"
      "scheduler: {plan_ahead: auto}\n";
  for (const bool is_written : {false, true}) {
    const auto gpu = parse(on_gpus(is_written ? ", kv_cache: {pages: auto, dtype: auto}" : "",
                                   is_written ? autos : ""),
                           {8, false});  // what the CPU can't do does not matter
    EXPECT_EQ(gpu.transport.kind, TransportKind::kCudaIpc);
    EXPECT_EQ(gpu.transport.combine_dtype, DType::kBFloat16);
    EXPECT_EQ(gpu.transport.dispatch_dtype, std::nullopt);  // the experts'
    EXPECT_NE(to_yaml(gpu).find("dispatch_dtype: auto"), std::string::npos);
    EXPECT_EQ(gpu.model.precision, Precision::kBFloat16);
    EXPECT_EQ(gpu.attention.kv_cache.dtype, DType::kBFloat16);
    EXPECT_EQ(gpu.attention.kv_cache.pages, 0U);
    EXPECT_EQ(gpu.scheduler.plan_ahead, 1U);
    EXPECT_TRUE(gpu.scheduler.graphs);
    EXPECT_THAT(to_yaml(gpu), HasSubstr("pages: auto"));

    const auto cpu =
        parse((is_written ? "attention: {kv_cache: {pages: auto}}\n" + autos : ""), kHost);
    EXPECT_EQ(cpu.transport.kind, TransportKind::kShm);
    EXPECT_EQ(cpu.transport.combine_dtype, DType::kFloat32);
    EXPECT_EQ(cpu.transport.dispatch_dtype, DType::kBFloat16);
    EXPECT_EQ(cpu.attention.kv_cache.pages, 2048U);
    EXPECT_EQ(cpu.scheduler.plan_ahead, 2U);
  }
  EXPECT_EQ(parse("", {8, false}).transport.dispatch_dtype, DType::kFloat32);
}

TEST(ClusterConfigTest, HalvesOfACoLocatedRankShareItsSms) {
  const auto config = parse(
      "topology: colocated\nattention: {servers: 2, device: 'cuda:0', sm_share: 0.5}\n"
      "ffn: {servers: 2, device: 'cuda:0'}\n");
  EXPECT_TRUE(config.is_colocated());
  EXPECT_EQ(config.ffn.gpu.sm_share, 0.5);
  EXPECT_EQ(parse_cluster_text(to_yaml(config), "test.yaml", kHost), config) << to_yaml(config);
  EXPECT_THAT(to_yaml(config), HasSubstr("topology: colocated"));
}

TEST(ClusterConfigTest, CoLocatedHasTheHardwareOfBothPools) {
  auto apart = parse(
      "attention: {device: 'cuda:0', sm_share: 0.25}\nffn: {device: 'cuda:0', sm_share: 0.5}\n");
  const auto together = as_colocated(apart);
  EXPECT_TRUE(together.is_colocated());
  EXPECT_EQ(together.attention.gpu.sm_share, 0.75);
  EXPECT_EQ(together.ffn.gpu.sm_share, 0.75);
  EXPECT_EQ(together.scheduler.microbatches, 1U);
  EXPECT_EQ(as_colocated(together), together);
  apart.ffn.servers = 2;
  EXPECT_THROW(as_colocated(apart), ConfigError);
}

TEST(ClusterConfigTest, WhatIsWrittenWinsOnGpus) {
  const auto config =
      parse(on_gpus(", kv_cache: {pages: 4096, dtype: fp8}",
                    "transport: {kind: nccl, combine_dtype: float32, dispatch_dtype: fp8}\n"
                    "scheduler: {plan_ahead: 3, graphs: false}\n"));
  EXPECT_EQ(config.attention.kv_cache.pages, 4096U);
  EXPECT_EQ(config.attention.kv_cache.dtype, DType::kFloat8E4M3);
  EXPECT_EQ(config.transport.kind, TransportKind::kNccl);
  EXPECT_EQ(config.transport.combine_dtype, DType::kFloat32);
  EXPECT_EQ(config.transport.dispatch_dtype, DType::kFloat8E4M3);
  EXPECT_EQ(config.scheduler.plan_ahead, 3U);
  EXPECT_FALSE(config.scheduler.graphs);
  for (const char* kind : {"inproc", "cuda_ipc"}) {
    EXPECT_STREQ(
        to_string(
            parse(on_gpus("", std::string("transport: {kind: ") + kind + "}")).transport.kind),
        kind);
  }
}

// What `auto` sends to GPUs depends on the model: Blueprint decides.
TEST(ClusterConfigTest, RowsForQuantisedWeightsMayBeNamed) {
  const auto parse_fp8 = [](const std::string& rest) {
    return parse_cluster_text("model: {path: " + kModel + ", quantization: fp8}\n" + rest,
                              "test.yaml", kHost);
  };
  const auto config = parse_fp8(on_gpus());
  EXPECT_EQ(config.model.quantization, "fp8");
  EXPECT_EQ(config.transport.dispatch_dtype, std::nullopt);
  EXPECT_EQ(config.attention.kv_cache.dtype, DType::kBFloat16);
  EXPECT_EQ(parse_fp8(on_gpus("", "transport: {dispatch_dtype: bf16}")).transport.dispatch_dtype,
            DType::kBFloat16);
}

TEST(ClusterConfigTest, YamlOfAGpuClusterParsesBackEqual) {
  for (const std::string& text :
       {on_gpus(), on_gpus(", sm_share: 0.5, gpu_memory_fraction: 0.3, kv_cache: {pages: 777}"),
        on_gpus(", kv_cache: {dtype: fp8}", "transport: {kind: nccl, dispatch_dtype: fp8}"),
        on_gpus("",
                "transport: {kind: inproc, combine_dtype: float32}\n"
                "scheduler: {graphs: false, plan_ahead: 2}")}) {
    const auto config = parse(text);
    EXPECT_EQ(parse_cluster_text(to_yaml(config), "test.yaml", {3, false}), config)
        << to_yaml(config);
  }
}

TEST(ClusterConfigTest, YamlOfAConfigParsesBackEqual) {
  auto config = parse(
      "coordinator: {http: '[::]:1234'}\n"
      "attention: {servers: 2, kv_cache: {pages: 999}}\n"
      "scheduler: {microbatches: 4, loop: plain}\nlog_level: 'off'\n");
  EXPECT_EQ(parse_cluster_text(to_yaml(config), "test.yaml", kHost), config);
  config.scheduler.microbatches = 0;
  config.model.served_name = "true: \"quoted\" \\ #auto\n\t\u00fc";
  const std::string yaml = to_yaml(config);
  EXPECT_THAT(yaml, HasSubstr("microbatches: auto"));
  // Effective values no longer depend on the host.
  EXPECT_EQ(parse_cluster_text(yaml, "test.yaml", {3, false}), config);
}

TEST(DefaultClusterTest, FitsTheHost) {
  for (const std::uint32_t num_cores : {1U, 2U, 3U, 4U, 8U, 24U, 64U, 256U}) {
    const HostFacts host{num_cores, num_cores != 3};
    const auto config = default_cluster(kModel, host);
    const std::uint32_t num_threads = config.attention.servers * config.attention.threads +
                                      config.ffn.servers * config.ffn.threads;
    EXPECT_LE(num_threads, std::max(2U, num_cores)) << num_cores;
    EXPECT_GE(2 * num_threads, num_cores) << num_cores << " cores: at least half of them are used";
    EXPECT_EQ(config.model.max_model_len, 2048U);
    EXPECT_EQ(config.model.served_name, "atlas-moe");
    EXPECT_FALSE(config.on_gpus());
    EXPECT_TRUE(config.source.empty());
    // What it says is a legal cluster file.
    auto parsed = parse_cluster_text(to_yaml(config), "", host);
    EXPECT_EQ(parsed, config) << num_cores;
  }
}

TEST(DefaultClusterTest, RefusesAFolderWithoutAModel) {
  try {
    default_cluster(kSourceDir / "configs", kHost);
    FAIL() << "accepted a folder without config.json";
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(), HasSubstr("has no config.json; give a Hugging Face model folder"));
  }
}

TEST(HostFactsTest, DetectsAtLeastOneCore) { EXPECT_GE(HostFacts::detect().num_cores, 1U); }

}  // namespace
}  // namespace fastfd::config
