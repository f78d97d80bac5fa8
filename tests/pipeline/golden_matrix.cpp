// Greedy tokens and log-probabilities of whole clusters against those of transformers, over the
// settings that must not change them: loop, lanes, plan_ahead, topology, transport, prefill chunk,
// batch, page pool, prefix cache, precision.
//
//     golden_matrix --pairwise     every pair of levels of two factors (CI)
//     golden_matrix --full         every combination
//     golden_matrix --full --part 2 --parts 4   the second quarter of them
//     golden_matrix --gpu --full   ... that a GPU has: all servers share one, in one process
//     golden_matrix --row 0,2,... --repeat 50   one combination, by the level of each factor
//     golden_matrix --row 0,2,... --repeat 999 --prompts 1   a cluster's first steps, over and over

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cmath>
#include <map>
#include <string>
#include <tuple>

#include "fastfd/cluster/local_cluster.h"
#include "fastfd/core/logging.h"
#include "fastfd/device/cuda.h"
#include "support/collector.h"
#include "support/golden.h"
#include "support/pairwise.h"

namespace fastfd {
namespace {

using namespace std::chrono_literals;

struct Factor {
  const char* name;
  std::vector<std::string> levels;
};

// The order of the enumerators is the order of the factors.
enum FactorId : std::size_t {
  kLoop,
  kPlanAhead,
  kTopology,
  kTransport,  // on a GPU: graphs
  kChunk,
  kBatch,
  kPool,
  kPrecision  // on a GPU: of the combine
};

bool on_gpu = false;
std::size_t max_prompts = ~std::size_t{0};
std::filesystem::path model_path =  // NOLINT(cert-err58-cpp): before main there is nobody to tell
    std::filesystem::path(FASTFD_SOURCE_DIR) / "models" / "atlas-moe";

const std::vector<Factor>& factors() {
  static const std::vector<Factor> kFactors = {
      {"loop", {"plain", "1 lane", "2 lanes", "4 lanes", "auto lanes"}},
      {"plan_ahead", {"1", "2", "3"}},
      {"topology", {"1A1F", "2A2F", "3A1F", "1A3F", "2A3F"}},
      {"transport", {"inproc", "shm"}},
      {"chunk", {"7", "256"}},
      {"batch", {"alone", "32 at once"}},
      {"pool", {"ample", "tiny", "prefix hits"}},
      {"precision", {"float32", "bf16"}}};
  static const std::vector<Factor> kGpuFactors = [] {
    auto gpu = kFactors;
    gpu[kTransport] = {"graphs", {"on", "off"}};
    for (const char* colocated : {"1C", "2C", "3C"}) {  // so many ranks that do both
      gpu[kTopology].levels.emplace_back(colocated);
    }
    gpu[kPrecision] = {"combine", {"float32", "bf16"}};
    return gpu;
  }();
  return on_gpu ? kGpuFactors : kFactors;
}

using Row = std::vector<std::size_t>;

std::string describe(const Row& row) {
  std::string text;
  for (std::size_t i = 0; i < row.size(); ++i) {
    text +=
        fmt::format("{}{}={}", i == 0 ? "" : ", ", factors()[i].name, factors()[i].levels[row[i]]);
  }
  return text;
}

// Must give the tokens of transformers, near-ties included.
bool is_exact(const Row& row) { return !on_gpu && row[kPrecision] == 0; }

bool is_colocated(const Row& row) { return factors()[kTopology].levels[row[kTopology]][1] == 'C'; }

std::uint32_t num_ffn_servers(const Row& row) {
  const std::string& topology = factors()[kTopology].levels[row[kTopology]];
  return static_cast<std::uint32_t>(topology[is_colocated(row) ? 0 : 2] - '0');
}

config::ClusterConfig make_config(const Row& row) {
  config::ClusterConfig config;
  config.model.path = model_path;
  const bool exact = is_exact(row);
  config.model.precision = exact ? Precision::kFloat32 : Precision::kBFloat16;
  config.attention.kv_cache.dtype = exact ? DType::kFloat32 : DType::kBFloat16;
  const std::string& topology = factors()[kTopology].levels[row[kTopology]];
  if (on_gpu) {
    config.attention.device = {.is_cuda = true};
    config.ffn.device = {.is_cuda = true};
    config.scheduler.graphs = row[kTransport] == 0;
    config.transport.combine_dtype = row[kPrecision] == 0 ? DType::kFloat32 : DType::kBFloat16;
  }
  config.attention.servers = static_cast<std::uint32_t>(topology[0] - '0');
  config.ffn.servers = num_ffn_servers(row);
  const double memory_fraction = 0.9 / (config.attention.servers + config.ffn.servers);
  config.attention.gpu.memory_fraction = memory_fraction;
  config.ffn.gpu.memory_fraction = memory_fraction;
  config.transport.kind =
      on_gpu || row[kTransport] == 0 ? config::TransportKind::kInproc : config::TransportKind::kShm;
  config.transport.spin_us = 0;
  config.scheduler.loop =
      row[kLoop] == 0 ? config::SchedulerLoop::kPlain : config::SchedulerLoop::kOverlapped;
  constexpr std::uint32_t kLanes[] = {2, 1, 2, 4, 0};
  config.scheduler.microbatches = kLanes[row[kLoop]];
  config.scheduler.plan_ahead = static_cast<std::uint32_t>(row[kPlanAhead]) + 1;
  config.scheduler.prefill_chunk = row[kChunk] == 0 ? 7 : 256;
  config.scheduler.max_sequences = 32;
  // Room for the longest prompt (626 + 96 tokens), but not for 32 sequences on a server.
  config.model.max_model_len = 768;
  config.attention.kv_cache.pages = 2048;
  if (row[kPool] == 1) {
    // Just the longest sequence. Admission leaves a page to each that runs, so pages are small
    // enough that a continuation takes many.
    config.attention.kv_cache.page_size = 4;
    config.attention.kv_cache.pages = config.model.max_model_len / 4;
  }
  config.attention.kv_cache.prefix_cache = row[kPool] == 2;
  return is_colocated(row) ? config::as_colocated(config) : config;
}

// What one combination showed.
struct Outcome {
  std::vector<std::string> problems;
  std::size_t num_equal = 0;
  double worst_logprob = 0.0;  // of those that must be near, along paths that are equal so far
  // Of all five that golden.json has of a position, in the prompts that must be equal; and the
  // log-probability that is off by so much.
  std::pair<double, double> worst_of_five;
  double preemptions = 0.0;
  double cached_tokens = 0.0;
};

class MatrixRunner {
 public:
  MatrixRunner() : golden_(testing::load_golden(make_config(Row(factors().size())).model.path)) {}

  Outcome run(const Row& row) {
    const cluster::Blueprint blueprint(make_config(row));
    Outcome outcome;
    cluster::LocalCluster cluster(blueprint, weights(blueprint));
    if (!cluster.wait_ready(30s)) {
      outcome.problems.push_back("not ready: " + cluster.engine().state().detail);
      return outcome;
    }
    if (row[kPool] == 2) {
      run_prompts(cluster, row, 32, outcome);  // fills the cache for the round that counts
    }
    run_prompts(cluster, row, row[kBatch] == 0 ? 1 : 32, outcome);
    outcome.preemptions = cluster.metric("fastfd_preemptions_total");
    outcome.cached_tokens = cluster.metric("fastfd_prompt_tokens_cached_total");
    const bool all_ran = outcome.problems.empty();
    if (row[kPool] == 2 && all_ran && outcome.cached_tokens == 0.0) {
      outcome.problems.push_back("the prompts found nothing in the prefix cache");
    }
    // Three such pools hold nearly all of the 32: there it depends on the placement.
    const bool must_preempt =
        row[kPool] == 1 && row[kBatch] == 1 && blueprint.config().attention.servers < 3;
    if (must_preempt && all_ran && outcome.preemptions == 0.0) {
      outcome.problems.push_back("the tiny pool preempted nobody");
    }
    return outcome;
  }

  std::size_t num_prompts() const { return std::min(golden_.prompts.size(), max_prompts); }

 private:
  void run_prompts(cluster::LocalCluster& cluster, const Row& row, std::size_t at_once,
                   Outcome& outcome) {
    outcome.num_equal = 0;
    const std::size_t count = num_prompts();
    for (std::size_t first = 0; first < count && outcome.problems.empty(); first += at_once) {
      run_batch(cluster, row, first, std::min(at_once, count - first), outcome);
    }
  }

  void run_batch(cluster::LocalCluster& cluster, const Row& row, std::size_t first,
                 std::size_t count, Outcome& outcome) {
    testing::Collector collector;
    std::vector<RequestId> ids;
    for (std::size_t i = 0; i < count; ++i) {
      Request request;
      request.id = cluster.engine().next_request_id();
      request.prompt = golden_.prompts[first + i].prompt_ids;
      request.max_tokens = golden_.max_new_tokens;
      request.sampling.temperature = 0.0F;
      request.sampling.num_logprobs = 20;
      request.sampling.stop_token_ids = golden_.stop_ids;
      request.arrival = std::chrono::steady_clock::now();
      ids.push_back(request.id);
      if (auto status = cluster.engine().submit(std::move(request), &collector); !status) {
        outcome.problems.push_back(golden_.prompts[first + i].id + ": " + status.to_string());
        return;
      }
    }
    if (!collector.wait_finished(count, 300s)) {
      outcome.problems.push_back("requests did not end: " + cluster.engine().state().detail);
      return;
    }
    for (std::size_t i = 0; i < count; ++i) {
      compare(golden_.prompts[first + i], collector.take(ids[i]), row, outcome);
    }
  }

  void compare(const testing::GoldenPrompt& prompt, const testing::Collector::Answer& answer,
               const Row& row, Outcome& outcome) {
    const bool exact = is_exact(row);
    const bool must_equal = exact || prompt.smallest_gap >= 0.1;
    const char* finish = to_string(answer.finish);
    std::size_t equal = 0;
    while (equal < answer.tokens.size() && equal < prompt.output_ids.size() &&
           answer.tokens[equal].token == prompt.output_ids[equal]) {
      ++equal;
    }
    const bool same = equal == prompt.output_ids.size() && equal == answer.tokens.size();
    outcome.num_equal += same ? 1 : 0;
    if (on_gpu && answer.error.empty()) {
      compare_combinations(prompt, answer, row, outcome);
    }
    if (must_equal && (!same || prompt.finish != finish)) {
      outcome.problems.push_back(fmt::format("{}: {} of {} tokens equal, {} came, finish '{}' {}",
                                             prompt.id, equal, prompt.output_ids.size(),
                                             answer.tokens.size(), finish, answer.error));
    }
    for (std::size_t i = 0; i < equal && i < prompt.top.size(); ++i) {
      for (const TokenLogprob& expected : prompt.top[i]) {
        check_logprob(prompt, i, expected, answer.tokens[i], row, outcome);
      }
    }
  }

  // Near-ties included, a sequence's tokens depend on neither lanes, graphs, pieces nor the others
  // in its batch; only on where its partial sums are cut, so on the number of FFN servers.
  void compare_combinations(const testing::GoldenPrompt& prompt,
                            const testing::Collector::Answer& answer, const Row& row,
                            Outcome& outcome) {
    std::vector<TokenId> tokens;
    for (const TokenEvent& event : answer.tokens) {
      tokens.push_back(event.token);
    }
    const std::uint32_t num_ffn = num_ffn_servers(row);
    const auto& first =
        first_tokens_.try_emplace({num_ffn, row[kPrecision], prompt.id}, tokens).first->second;
    if (tokens != first) {
      const auto at = std::mismatch(tokens.begin(), tokens.end(), first.begin(), first.end());
      outcome.problems.push_back(
          fmt::format("{}: other tokens than in an earlier combination with {} FFN servers, from "
                      "position {} on",
                      prompt.id, num_ffn, at.first - tokens.begin()));
    }
  }

  // Of prompts that must be equal. float32: all five of a position must be near. bf16: the chosen
  // token's; the tail's log-probabilities move with logits of 30 that are sums of rounded products,
  // so that they are only printed.
  static void check_logprob(const testing::GoldenPrompt& prompt, std::size_t position,
                            const TokenLogprob& expected, const TokenEvent& actual, const Row& row,
                            Outcome& outcome) {
    const bool exact = is_exact(row);
    const bool must_be_near = exact || expected.token == actual.token;
    if (!exact && prompt.smallest_gap < 0.1) {
      return;
    }
    const auto at = std::find_if(actual.top_logprobs.begin(), actual.top_logprobs.end(),
                                 [&](const auto& top) { return top.token == expected.token; });
    if (at == actual.top_logprobs.end()) {
      if (must_be_near) {
        outcome.problems.push_back(
            fmt::format("{} position {}: token {} is not among the likeliest", prompt.id, position,
                        expected.token));
      }
      return;
    }
    const double off = std::abs(at->logprob - expected.logprob);
    outcome.worst_of_five = std::max(outcome.worst_of_five, {off, expected.logprob});
    if (!must_be_near) {
      return;
    }
    outcome.worst_logprob = std::max(outcome.worst_logprob, off);
    // Partial sums in bf16 are rounded once more a layer.
    const bool rounds_sums = on_gpu && row[kPrecision] == 1;
    if (off > (exact ? 2e-3 : rounds_sums ? 6e-2 : 3e-2)) {
      outcome.problems.push_back(fmt::format("{} position {}: log-probability of {} is off by {}",
                                             prompt.id, position, expected.token, off));
    }
  }

  // Weights depend on the number of FFN servers only.
  const cluster::ClusterWeights& weights(const cluster::Blueprint& blueprint) {
    auto& entry = weights_[blueprint.config().ffn.servers];
    if (!entry.attention && !entry.gpu_attention) {
      entry = cluster::load_cluster_weights(blueprint);
    }
    return entry;
  }

  testing::Golden golden_;
  std::map<std::uint32_t, cluster::ClusterWeights> weights_;
  // By FFN servers, combine dtype and prompt; GPU only.
  std::map<std::tuple<std::uint32_t, std::size_t, std::string>, std::vector<TokenId>> first_tokens_;
};

std::vector<std::size_t> level_counts() {
  std::vector<std::size_t> counts;
  for (const Factor& factor : factors()) {
    counts.push_back(factor.levels.size());
  }
  return counts;
}

// plan_ahead means nothing to the plain loop: its combinations would run three times.
bool is_duplicate(const Row& row) { return row[kLoop] == 0 && row[kPlanAhead] != 0; }

int run_rows(const std::vector<Row>& rows) {
  MatrixRunner runner;
  std::size_t num_failed = 0;
  std::size_t num_preempting = 0;
  double worst[2] = {0.0, 0.0};
  std::pair<double, double> worst_of_five_bf16;
  std::size_t fewest_equal[2] = {runner.num_prompts(), runner.num_prompts()};
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const auto start = std::chrono::steady_clock::now();
    const Outcome outcome = runner.run(rows[i]);
    const std::size_t precision = rows[i][kPrecision];
    worst[precision] = std::max(worst[precision], outcome.worst_logprob);
    if (precision == 1) {
      worst_of_five_bf16 = std::max(worst_of_five_bf16, outcome.worst_of_five);
    }
    fewest_equal[precision] = std::min(fewest_equal[precision], outcome.num_equal);
    num_preempting += outcome.preemptions > 0 ? 1 : 0;
    num_failed += outcome.problems.empty() ? 0 : 1;
    fmt::print("{:4}/{} {} {} ({} equal, {:.0f} preemptions, {:.0f} cached, {:.1f} s)\n", i + 1,
               rows.size(), outcome.problems.empty() ? "ok  " : "FAIL", describe(rows[i]),
               outcome.num_equal, outcome.preemptions, outcome.cached_tokens,
               std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
    for (const auto& problem : outcome.problems) {
      fmt::print("       {}\n", problem);
    }
    std::fflush(stdout);
  }
  fmt::print(
      "{} combinations, {} failed, {} with preemptions; {} float32: at least {} of {} "
      "prompts equal, log-probabilities off by at most {:.2g}; bf16: at least {} equal, "
      "log-probabilities of chosen tokens off by at most {:.2g}, of all five likeliest "
      "{:.2g} (of one at {:.1f})\n",
      rows.size(), num_failed, num_preempting, factors()[kPrecision].name, fewest_equal[0],
      runner.num_prompts(), worst[0], fewest_equal[1], worst[1], worst_of_five_bf16.first,
      worst_of_five_bf16.second);
  return num_failed == 0 ? 0 : 1;
}

int run_main(int argc, char** argv) {
  CLI::App app("Whole clusters against the tokens of transformers");
  bool full = false;
  bool pairwise = false;
  Row row;
  std::size_t part = 1;
  std::size_t parts = 1;
  app.add_flag("--gpu", on_gpu, "On the first GPU, bf16");
  app.add_option("--model", model_path, "Model folder with golden.json")
      ->check(CLI::ExistingDirectory);
  app.add_flag("--full", full, "Every combination");
  app.add_flag("--pairwise", pairwise, "Every pair of levels (default)");
  app.add_option("--row", row, "One combination: the level of each factor")
      ->delimiter(',')
      ->expected(static_cast<int>(factors().size()));
  std::size_t repeat = 1;
  app.add_option("--repeat", repeat, "Run that combination so often")->check(CLI::Range(1, 100000));
  app.add_option("--prompts", max_prompts, "Only the first so many prompts")
      ->check(CLI::Range(1, 1000));
  app.add_option("--parts", parts, "Divide the combinations ...")->check(CLI::Range(1, 1000));
  app.add_option("--part", part, "... and run this part, from 1")->check(CLI::Range(1, 1000));
  CLI11_PARSE(app, argc, argv);
  init_logging("golden", "warn");
  if (on_gpu) {
    device::set_cuda_environment();
  }
  if (!row.empty()) {
    return run_rows(std::vector<Row>(repeat, row));
  }
  auto rows = full ? testing::all_rows(level_counts()) : testing::pairwise_rows(level_counts());
  if (full) {
    std::erase_if(rows, is_duplicate);
  }
  // Dealt out in turn, so that the parts take equally long.
  std::size_t index = 0;
  std::erase_if(rows, [&](const Row&) { return index++ % parts + 1 != part; });
  return run_rows(rows);
}

}  // namespace
}  // namespace fastfd

int main(int argc, char** argv) { return fastfd::run_main(argc, argv); }
