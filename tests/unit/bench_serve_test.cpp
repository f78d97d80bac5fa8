#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "bench/load_generator.h"
#include "bench/url.h"
#include "bench/workload.h"
#include "bench_test_server.h"
#include "fastfd/bench/serve_bench.h"

namespace fastfd::bench {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

std::string token_event() { return R"({"choices":[{"text":"a","finish_reason":null}]})"; }

/// Answers as a well-behaved server does: max_tokens tokens, usage, [DONE]. Refuses the fields
/// named in `unknown_fields` as strict servers do.
bool answer_well(const TestRequest& request, const TestConnection& connection,
                 const std::vector<std::string>& unknown_fields = {}) {
  if (request.path == "/v1/models") {
    connection.send_json(200, R"({"object":"list","data":[{"id":"test-model"}]})");
    return true;
  }
  const json body = json::parse(request.body);
  for (const std::string& field : unknown_fields) {
    if (body.contains(field) && (field != "prompt" || body["prompt"].is_array())) {
      connection.send_json(400, R"({"error":{"message":"unknown field )" + field + R"("}})");
      return true;
    }
  }
  connection.begin_stream();
  const auto num_tokens = body["max_tokens"].get<int>();
  for (int i = 0; i < num_tokens; ++i) {
    connection.event(token_event());
  }
  if (body.contains("stream_options")) {
    std::size_t prompt_tokens = 0;
    if (body["prompt"].is_array()) {
      prompt_tokens = body["prompt"].size();
    } else {  // 5 + 2 a word
      const std::string text = body.value("prompt", "");
      prompt_tokens =
          5 + 2 * (1 + static_cast<std::size_t>(std::count(text.begin(), text.end(), ' ')));
    }
    connection.event(
        json{{"choices", json::array()},
             {"usage", {{"prompt_tokens", prompt_tokens}, {"completion_tokens", num_tokens}}}}
            .dump());
  }
  connection.event("[DONE]");
  connection.end_stream();
  return true;
}

class TemporaryFile {
 public:
  TemporaryFile()
      : path_(std::filesystem::temp_directory_path() /
              ("fastfd_bench_test_" + std::to_string(::getpid()) + ".json")) {}
  ~TemporaryFile() { std::filesystem::remove(path_); }
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;
  const std::filesystem::path& path() const { return path_; }
  json read() const {
    std::ifstream in(path_);
    return json::parse(in);
  }

 private:
  std::filesystem::path path_;
};

ServeBenchOptions small_bench(const TestServer& server, const TemporaryFile& file) {
  ServeBenchOptions options;
  options.url = server.url();
  options.num_requests = 20;
  options.concurrency = 4;
  options.input_len = 21;
  options.output_len = 5;
  options.num_warmup = 2;
  options.timeout_s = 60;
  options.json_file = file.path();
  return options;
}

TEST(ServeBench, MeasuresAWellBehavedServer) {
  const TestServer server(
      [](const TestRequest& r, const TestConnection& c) { return answer_well(r, c); });
  const TemporaryFile file;
  ServeBenchOptions options = small_bench(server, file);
  options.slo = parse_slo("ttft=60s,tpot=60s,e2e=60s");
  EXPECT_EQ(run_serve_bench(options), 0);
  const json report = file.read();
  EXPECT_EQ(report["num_ok"], 20);
  EXPECT_EQ(report["num_good"], 20);
  EXPECT_EQ(report["num_failed"], 0);
  EXPECT_EQ(report["output_tokens"], 100);
  EXPECT_EQ(report["prompt_tokens"], 420);
  EXPECT_EQ(report["options"]["model"], "test-model");
  EXPECT_EQ(report["options"]["token_prompts"], true);
  EXPECT_EQ(report["options"]["ignore_eos"], true);
  EXPECT_EQ(report["ttft_ms"]["count"], 20);
  EXPECT_EQ(report["itl_ms"]["count"], 80);
  EXPECT_LE(report["peak_concurrency"], 4);
  // Models, probe, two of the warm-up and four clients, each on a kept connection.
  EXPECT_LE(server.num_connections(), 8);
}

TEST(ServeBench, FindsOutWhatAStrictServerTakes) {
  const TestServer server([](const TestRequest& r, const TestConnection& c) {
    return answer_well(r, c, {"ignore_eos", "prompt"});
  });
  const TemporaryFile file;
  EXPECT_EQ(run_serve_bench(small_bench(server, file)), 0);
  const json report = file.read();
  EXPECT_EQ(report["options"]["token_prompts"], false);
  EXPECT_EQ(report["options"]["ignore_eos"], false);
  EXPECT_EQ(report["options"]["usage_from_server"], true);
  EXPECT_EQ(report["prompt_tokens"], 20 * 21) << "21 tokens are 8 words at 5 + 2 a word";
}

TEST(ServeBench, CountsChunksWhereTheServerSendsNoUsage) {
  const TestServer server([](const TestRequest& r, const TestConnection& c) {
    return answer_well(r, c, {"stream_options"});
  });
  const TemporaryFile file;
  EXPECT_EQ(run_serve_bench(small_bench(server, file)), 0);
  const json report = file.read();
  EXPECT_EQ(report["options"]["usage_from_server"], false);
  EXPECT_EQ(report["output_tokens"], 100);
}

TEST(ServeBench, CountsEveryFailureByKind) {
  std::atomic<int> num_requests{0};
  const TestServer server([&](const TestRequest& request, const TestConnection& connection) {
    if (request.path == "/v1/models" || num_requests++ == 0) {  // the probe must pass
      return answer_well(request, connection);
    }
    switch (num_requests % 6) {
      case 0:
        connection.send_json(429, R"({"error":{"message":"queue is full"}})");
        return true;
      case 1:
        connection.begin_stream();
        connection.event(token_event());
        return false;  // cut in the middle
      case 2:
        connection.begin_stream();
        connection.event(token_event());
        connection.event(R"({"error":{"message":"server lost"}})");
        connection.event("[DONE]");
        connection.end_stream();
        return true;
      case 3:
        connection.begin_stream();
        connection.event("{not json");
        connection.event("[DONE]");
        connection.end_stream();
        return true;
      case 4:
        connection.begin_stream();  // ends as HTTP wants, but says nothing of an end
        connection.event(token_event());
        connection.end_stream();
        return true;
      default:
        return answer_well(request, connection);
    }
  });
  const TemporaryFile file;
  ServeBenchOptions options = small_bench(server, file);
  options.num_requests = 60;
  options.num_warmup = 0;
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(run_serve_bench(options), 1) << "most requests failed";
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), HasSubstr("50 of 60 requests failed"));
  const json report = file.read();
  EXPECT_EQ(report["num_requests"], 60);
  EXPECT_EQ(report["num_ok"], 10);
  EXPECT_EQ(report["requests"].size(), 60U);
  std::map<std::string, int> counts;
  std::map<std::string, std::string> examples;
  for (const json& failure : report["failures"]) {
    counts[failure["kind"]] = failure["count"];
    examples[failure["kind"]] = failure["example"];
  }
  EXPECT_EQ(counts["http 429"], 10);
  EXPECT_EQ(examples["http 429"], "queue is full");
  EXPECT_EQ(counts["broken stream"], 20);
  EXPECT_EQ(counts["error in stream"], 10);
  EXPECT_EQ(examples["error in stream"], "server lost");
  EXPECT_EQ(counts["malformed answer"], 10);
}

TEST(ServeBench, ASilentServerIsATimeout) {
  std::atomic<int> num_requests{0};
  const TestServer server([&](const TestRequest& request, const TestConnection& connection) {
    if (request.path == "/v1/models" || num_requests++ == 0) {
      return answer_well(request, connection);
    }
    connection.begin_stream();
    connection.event(token_event());
    connection.await_close();
    return false;
  });
  const TemporaryFile file;
  ServeBenchOptions options = small_bench(server, file);
  options.num_requests = 2;
  options.num_warmup = 0;
  options.timeout_s = 2;
  EXPECT_EQ(run_serve_bench(options), 1) << "no request succeeded";
  EXPECT_EQ(file.read()["failures"][0]["kind"], "timeout");
  EXPECT_EQ(file.read()["failures"][0]["count"], 2);
}

TEST(ServeBench, RetriesWhenAKeptConnectionWasClosed) {
  // Closes each connection after one answer without saying so: every reuse is stale.
  const TestServer server([](const TestRequest& request, const TestConnection& connection) {
    answer_well(request, connection);
    return false;
  });
  const TemporaryFile file;
  EXPECT_EQ(run_serve_bench(small_bench(server, file)), 0);
  EXPECT_EQ(file.read()["num_failed"], 0);
}

TEST(ServeBench, PoissonArrivalsAreAllServedWithinTheLimitInFlight) {
  std::atomic<int> in_flight{0};
  std::atomic<int> peak{0};
  const TestServer server([&](const TestRequest& request, const TestConnection& connection) {
    const int now = ++in_flight;
    int seen = peak.load();
    while (now > seen && !peak.compare_exchange_weak(seen, now)) {
    }
    const bool keep = answer_well(request, connection);
    --in_flight;
    return keep;
  });
  const TemporaryFile file;
  ServeBenchOptions options = small_bench(server, file);
  options.request_rate = 2000;
  options.concurrency = 3;
  options.num_requests = 100;
  EXPECT_EQ(run_serve_bench(options), 0);
  EXPECT_EQ(file.read()["num_ok"], 100);
  EXPECT_LE(peak.load(), 3);
}

TEST(ServeBench, ADurationEndsTheRunAndLosesNoRequest) {
  const TestServer server(
      [](const TestRequest& r, const TestConnection& c) { return answer_well(r, c); });
  const TemporaryFile file;
  ServeBenchOptions options = small_bench(server, file);
  options.num_requests = 0;
  options.duration_s = 0.3;
  EXPECT_EQ(run_serve_bench(options), 0);
  const json report = file.read();
  EXPECT_GT(report["num_ok"], 0);
  EXPECT_EQ(report["num_failed"], 0);
  for (const json& request : report["requests"]) {
    EXPECT_LT(request["start_s"], 0.3);
  }
}

TEST(ServeBench, AnUnreachableServerIsNamedWithARemedy) {
  std::string url;
  {
    const TestServer gone([](const TestRequest&, const TestConnection&) { return false; });
    url = gone.url();
  }
  ServeBenchOptions options;
  options.url = url;
  try {
    run_serve_bench(options);
    FAIL() << "nobody listens there";
  } catch (const BenchError& error) {
    EXPECT_THAT(error.what(), HasSubstr(url));
    EXPECT_THAT(error.what(), HasSubstr("is the server running?"));
  }
}

TEST(ServeBench, ADeadServerIsNotHammeredAndGivenUp) {
  std::uint16_t port = 0;
  {
    const TestServer gone([](const TestRequest&, const TestConnection&) { return false; });
    port = parse_url(gone.url()).port;
  }
  LoadGenerator generator({"127.0.0.1", port, ""}, "", 60);
  ServeBenchOptions options;
  const auto workload = synthetic_workload(options, true, {});
  Arrivals arrivals;
  arrivals.concurrency = 4;
  arrivals.give_up_after_s = 0.5;
  const LoadResult result = generator.run({}, *workload, arrivals, {});
  EXPECT_TRUE(result.given_up);
  // At 0, 0.1, 0.3 and 0.7 s each; a loaded machine makes them fewer.
  EXPECT_LE(result.records.size(), 4U * 4U);
  EXPECT_GE(result.records.size(), 4U);
}

TEST(ServeBench, AServerThatHangsUpAtOnceIsNotHammeredEither) {
  std::atomic<bool> dead{false};
  std::atomic<int> num_hang_ups{0};
  const TestServer server([&](const TestRequest& request, const TestConnection& connection) {
    if (dead) {
      ++num_hang_ups;
      return false;
    }
    dead = request.path != "/v1/models";  // after the probe
    return answer_well(request, connection);
  });
  const TemporaryFile file;
  ServeBenchOptions options = small_bench(server, file);
  options.num_warmup = 0;
  options.num_requests = 0;
  options.duration_s = 0.5;
  EXPECT_EQ(run_serve_bench(options), 1);
  EXPECT_EQ(file.read()["num_ok"], 0);
  EXPECT_LE(num_hang_ups.load(), 4 * 4);
}

TEST(ServeBench, ReportsThatCantBeWrittenAreFoundOutBeforeTheRun) {
  std::atomic<int> num_requests{0};
  const TestServer server([&](const TestRequest& request, const TestConnection& connection) {
    ++num_requests;
    return answer_well(request, connection);
  });
  const TemporaryFile file;
  for (const char* path : {"/nonexistent/report.json", "/"}) {
    ServeBenchOptions options = small_bench(server, file);
    options.json_file = path;
    EXPECT_THROW(run_serve_bench(options), BenchError) << path;
    options = small_bench(server, file);
    options.html_file = path;
    EXPECT_THROW(run_serve_bench(options), BenchError) << path;
  }
  EXPECT_EQ(num_requests.load(), 0);
  EXPECT_FALSE(std::filesystem::exists(file.path())) << "nothing is left of a run that never began";
}

TEST(ServeBench, AnOldReportStaysUntilThereIsANewOne) {
  const TemporaryFile file;
  std::ofstream(file.path()) << std::string(100'000, ' ') << "{\"old\": true}";
  ServeBenchOptions options;
  options.url = "http://127.0.0.1:1";
  options.json_file = file.path();
  EXPECT_THROW(run_serve_bench(options), BenchError);
  EXPECT_EQ(file.read()["old"], true);
  const TestServer server(
      [](const TestRequest& r, const TestConnection& c) { return answer_well(r, c); });
  EXPECT_EQ(run_serve_bench(small_bench(server, file)), 0);
  EXPECT_FALSE(file.read().contains("old"));
}

TEST(ServeBench, NumbersThatAreNoneAreRefused) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const double inf = std::numeric_limits<double>::infinity();
  for (const double bad : {nan, inf, -1.0}) {
    ServeBenchOptions options;
    options.duration_s = bad;
    EXPECT_THROW(run_serve_bench(options), BenchError);
    options = {};
    options.timeout_s = bad;
    EXPECT_THROW(run_serve_bench(options), BenchError);
    options = {};
    options.request_rate = bad;
    EXPECT_THROW(run_serve_bench(options), BenchError);
    options = {};
    options.temperature = bad;
    EXPECT_THROW(run_serve_bench(options), BenchError);
  }
}

TEST(ServeBench, ADatasetThatIsNoFileIsRefused) {
  const TemporaryFile file;
  ASSERT_EQ(::mkfifo(file.path().c_str(), 0600), 0);
  EXPECT_THROW(sharegpt_workload(file.path(), 0), BenchError) << "nobody writes to the FIFO";
}

TEST(ServeBench, AServerThatIsNotReadyAndAnUnknownModelAreErrors) {
  const TestServer loading([](const TestRequest&, const TestConnection& connection) {
    connection.send_json(503, R"({"error":{"message":"waiting for FFN server 1"}})");
    return true;
  });
  ServeBenchOptions options;
  options.url = loading.url();
  EXPECT_THROW(
      {
        try {
          run_serve_bench(options);
        } catch (const BenchError& error) {
          EXPECT_THAT(error.what(), HasSubstr("waiting for FFN server 1"));
          throw;
        }
      },
      BenchError);
  const TestServer strict([](const TestRequest& request, const TestConnection& connection) {
    if (request.path == "/v1/models") {
      return answer_well(request, connection);
    }
    connection.send_json(404, R"({"error":{"message":"no model 'x'"}})");
    return true;
  });
  options.url = strict.url();
  options.model = "x";
  EXPECT_THROW(run_serve_bench(options), BenchError);
}

TEST(ServeBench, AnInterruptReportsWhatWasMeasured) {
  std::atomic<int> num_requests{0};
  const TestServer server([&](const TestRequest& request, const TestConnection& connection) {
    if (request.path == "/v1/models" || num_requests++ < 10) {
      return answer_well(request, connection);
    }
    ::raise(SIGINT);  // the benchmark's handler takes it
    connection.await_close();
    return false;
  });
  const TemporaryFile file;
  ServeBenchOptions options = small_bench(server, file);
  options.concurrency = 1;
  options.num_warmup = 0;
  EXPECT_EQ(run_serve_bench(options), 130);
  const json report = file.read();
  EXPECT_EQ(report["interrupted"], true);
  EXPECT_EQ(report["num_ok"], 9);
  EXPECT_EQ(report["failures"][0]["kind"], "interrupted");
}

TEST(ServeBench, HundredsOfStreamsAtOnce) {
  constexpr int kStreams = 200;
  std::atomic<int> waiting{0};
  const TestServer server([&](const TestRequest& request, const TestConnection& connection) {
    if (request.path != "/v1/models" && json::parse(request.body)["max_tokens"] == 5) {
      ++waiting;
      while (waiting.load() < kStreams) {  // all must be in flight before any is answered
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
    }
    return answer_well(request, connection);
  });
  const TemporaryFile file;
  ServeBenchOptions options = small_bench(server, file);
  options.num_warmup = 0;
  options.num_requests = kStreams;
  options.concurrency = kStreams;
  EXPECT_EQ(run_serve_bench(options), 0);
  EXPECT_EQ(file.read()["num_ok"], kStreams);
  EXPECT_EQ(file.read()["peak_concurrency"], kStreams);
}

}  // namespace
}  // namespace fastfd::bench
