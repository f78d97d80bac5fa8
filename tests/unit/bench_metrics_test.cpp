#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <vector>

#include "bench/metrics.h"
#include "bench/progress.h"
#include "bench/report.h"

namespace fastfd::bench {
namespace {

using ::testing::HasSubstr;

/// A successful request: tokens at first_token_s and then every `gap_ms`.
RequestRecord request(double start_s, double first_token_s, double gap_ms,
                      std::uint32_t output_tokens) {
  RequestRecord record;
  record.failure = FailureKind::kNone;
  record.start_s = start_s;
  record.has_token = true;
  record.first_token_s = first_token_s;
  record.end_s = first_token_s + gap_ms * 1e-3 * (output_tokens - 1);
  record.token_gaps_ms.assign(output_tokens - 1, static_cast<float>(gap_ms));
  record.prompt_tokens = 10;
  record.output_tokens = output_tokens;
  return record;
}

RequestRecord failed(FailureKind kind, double start_s, double end_s) {
  RequestRecord record;
  record.failure = kind;
  record.http_status = 429;
  record.failure_detail = "why";
  record.start_s = start_s;
  record.end_s = end_s;
  return record;
}

TEST(Percentile, InterpolatesBetweenRanksAsNumpyDoes) {
  // numpy.percentile([1, 2, 4, 8], [0, 50, 90, 99, 100])
  const std::vector<double> sorted{1, 2, 4, 8};
  EXPECT_DOUBLE_EQ(percentile(sorted, 0), 1);
  EXPECT_DOUBLE_EQ(percentile(sorted, 0.5), 3);
  EXPECT_NEAR(percentile(sorted, 0.9), 6.8, 1e-12);
  EXPECT_NEAR(percentile(sorted, 0.99), 7.88, 1e-12);
  EXPECT_DOUBLE_EQ(percentile(sorted, 1), 8);
  EXPECT_DOUBLE_EQ(percentile({5}, 0.99), 5);
}

TEST(Describe, SortsFirstAndBearsNoSamples) {
  const Distribution d = describe({8, 1, 4, 2});
  EXPECT_EQ(d.count, 4U);
  EXPECT_DOUBLE_EQ(d.mean, 3.75);
  EXPECT_DOUBLE_EQ(d.p50, 3);
  EXPECT_DOUBLE_EQ(d.min, 1);
  EXPECT_DOUBLE_EQ(d.max, 8);
  EXPECT_EQ(describe({}).count, 0U);
}

TEST(ParseSlo, ReadsBoundsAndUnits) {
  const Slo slo = parse_slo("ttft=200ms,tpot=30,e2e=1.5s");
  EXPECT_DOUBLE_EQ(*slo.ttft_ms, 200);
  EXPECT_DOUBLE_EQ(*slo.tpot_ms, 30);
  EXPECT_DOUBLE_EQ(*slo.e2e_ms, 1500);
  const Slo one = parse_slo("tpot=500us");
  EXPECT_DOUBLE_EQ(*one.tpot_ms, 0.5);
  EXPECT_FALSE(one.ttft_ms || one.e2e_ms);
}

TEST(ParseSlo, RejectsWhatItDoesNotUnderstand) {
  for (const char* text : {"", "ttft", "ttft=", "ttft=abc", "ttft=-1ms", "ttft=0", "ttft=5min",
                           "itl=5ms", "ttft=1ms,", "ttft=1ms,ttft=2ms", "ttft=nan", "=5"}) {
    EXPECT_THROW(parse_slo(text), BenchError) << text;
  }
}

TEST(RequestRecord, LatenciesByDefinition) {
  const RequestRecord r = request(1.0, 1.2, 10, 11);
  EXPECT_NEAR(r.ttft_ms(), 200, 1e-9);
  EXPECT_NEAR(r.tpot_ms(), 10, 1e-9);
  EXPECT_NEAR(r.e2e_ms(), 300, 1e-9);
  EXPECT_DOUBLE_EQ(request(0, 1, 10, 1).tpot_ms(), 0) << "one token has no time between tokens";
}

TEST(Summarize, CountsThroughputOverSuccessfulRequestsOnly) {
  std::vector<RequestRecord> records{
      request(0, 0.1, 10, 11), request(1, 1.3, 20, 11), failed(FailureKind::kHttpStatus, 0.5, 0.6),
      failed(FailureKind::kHttpStatus, 0.5, 0.6), failed(FailureKind::kTimeout, 0, 2)};
  const Summary s = summarize(records, {});
  EXPECT_EQ(s.num_requests, 5U);
  EXPECT_EQ(s.num_ok, 2U);
  EXPECT_EQ(s.failures.at("http 429").count, 2U);
  EXPECT_EQ(s.failures.at("http 429").example, "why");
  EXPECT_EQ(s.failures.at("timeout").count, 1U);
  EXPECT_DOUBLE_EQ(s.duration_s, 2);
  EXPECT_DOUBLE_EQ(s.request_throughput, 1);
  EXPECT_DOUBLE_EQ(s.output_throughput, 11);
  EXPECT_DOUBLE_EQ(s.total_throughput, 21);
  EXPECT_EQ(s.ttft_ms.count, 2U);
  EXPECT_NEAR(s.ttft_ms.mean, 200, 1e-9);
  EXPECT_NEAR(s.tpot_ms.mean, 15, 1e-9);
  EXPECT_EQ(s.itl_ms.count, 20U);
  EXPECT_EQ(s.peak_concurrency, 3U);
  EXPECT_EQ(s.num_good, 2U) << "with no objective every successful request is good";
}

TEST(Summarize, GoodputNeedsEveryObjective) {
  const std::vector<RequestRecord> records{
      request(0, 0.10, 10, 11),                 // meets both
      request(0, 0.30, 10, 11),                 // first token too late
      request(0, 0.10, 40, 11),                 // tokens too slow
      failed(FailureKind::kBrokenStream, 0, 1)  // never good
  };
  const Summary s = summarize(records, parse_slo("ttft=200ms,tpot=30ms"));
  EXPECT_EQ(s.num_good, 1U);
  EXPECT_DOUBLE_EQ(s.goodput, 1 / s.duration_s);
  EXPECT_EQ(summarize(records, parse_slo("e2e=250ms")).num_good, 1U);
}

TEST(Summarize, ARequestWithoutTokensNeverMeetsAFirstTokenBound) {
  RequestRecord silent;
  silent.failure = FailureKind::kNone;
  silent.end_s = 0.001;
  const Summary s = summarize({silent}, parse_slo("ttft=1s"));
  EXPECT_EQ(s.num_ok, 1U);
  EXPECT_EQ(s.num_good, 0U);
  EXPECT_EQ(s.ttft_ms.count, 0U);
}

TEST(Summarize, NothingAtAll) { EXPECT_EQ(summarize({}, {}).num_requests, 0U); }

Report example_report() {
  Report report;
  report.options.url = "http://h:1";
  report.options.concurrency = 2;
  report.options.slo = parse_slo("ttft=200ms");
  report.dialect.model = "m<odel>";
  report.records = {request(0, 0.1, 10, 11), failed(FailureKind::kTimeout, 0, 2)};
  report.summary = summarize(report.records, report.options.slo);
  return report;
}

TEST(Report, TableShowsFailuresAndGoodput) {
  const std::string text = table(example_report());
  EXPECT_THAT(text, HasSubstr("1 ok, 1 failed"));
  EXPECT_THAT(text, HasSubstr("1 x timeout: why"));
  EXPECT_THAT(text, HasSubstr("50.0 % of all (TTFT <= 200 ms)"));
}

TEST(Report, JsonHoldsSummaryAndEveryRequest) {
  const nlohmann::json json = to_json(example_report());
  EXPECT_EQ(json["num_ok"], 1);
  EXPECT_EQ(json["num_failed"], 1);
  EXPECT_EQ(json["failures"][0]["kind"], "timeout");
  ASSERT_EQ(json["requests"].size(), 2U);
  EXPECT_NEAR(json["requests"][0]["ttft_ms"].get<double>(), 100, 1e-9);
  EXPECT_EQ(json["requests"][1]["failure"], "timeout");
}

TEST(Report, HtmlStandsAlone) {
  const std::string html = to_html(example_report());
  EXPECT_THAT(html, HasSubstr("<polyline"));
  EXPECT_THAT(html, HasSubstr("m&lt;odel&gt;"));
  EXPECT_THAT(html, Not(HasSubstr("src=")));
  EXPECT_THAT(html, Not(HasSubstr("href=")));
}

TEST(ProgressLine, TakesTheNearerLimit) {
  Arrivals arrivals;
  arrivals.num_requests = 100;
  arrivals.duration_s = 10;
  LoadProgress progress;
  progress.elapsed_s = 5;
  progress.started = 30;
  progress.finished = 25;
  progress.failed = 1;
  const std::string line = progress_line(progress, arrivals, 1234);
  EXPECT_THAT(line, HasSubstr("50%"));
  EXPECT_THAT(line, HasSubstr("25/100 requests"));
  EXPECT_THAT(line, HasSubstr("5 in flight"));
  EXPECT_THAT(line, HasSubstr("1 failed"));
  EXPECT_THAT(progress_line(progress, arrivals, 1234, "warm-up"),
              ::testing::StartsWith("warm-up ["));
}

}  // namespace
}  // namespace fastfd::bench
