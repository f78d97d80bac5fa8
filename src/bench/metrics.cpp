#include "bench/metrics.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <numeric>
#include <utility>

namespace fastfd::bench {
namespace {

double parse_milliseconds(const std::string& text, const std::string& whole) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const std::string unit(end, text.data() + text.size());
  const std::map<std::string, double> factors{{"", 1}, {"ms", 1}, {"s", 1e3}, {"us", 1e-3}};
  const auto factor = factors.find(unit);
  if (error != std::errc() || factor == factors.end() || !(value > 0) || !std::isfinite(value)) {
    throw BenchError("--slo " + whole + ": '" + text +
                     "' is no duration; write a positive number with us, ms or s, such as 200ms");
  }
  return value * factor->second;
}

/// Most requests in flight at one time; an end at the same instant as a start comes first.
std::uint64_t peak_in_flight(const std::vector<RequestRecord>& records) {
  std::vector<std::pair<double, int>> changes;
  changes.reserve(records.size() * 2);
  for (const RequestRecord& record : records) {
    changes.emplace_back(record.start_s, 1);
    changes.emplace_back(std::max(record.end_s, record.start_s), -1);
  }
  std::sort(changes.begin(), changes.end());
  std::int64_t in_flight = 0;
  std::int64_t peak = 0;
  for (const auto& [time, change] : changes) {
    in_flight += change;
    peak = std::max(peak, in_flight);
  }
  return static_cast<std::uint64_t>(peak);
}

}  // namespace

Slo parse_slo(const std::string& text) {
  Slo slo;
  std::size_t begin = 0;
  while (begin <= text.size()) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    const std::string part = text.substr(begin, end - begin);
    const std::size_t equals = part.find('=');
    const std::string name = part.substr(0, equals);
    std::optional<double>* bound = name == "ttft"   ? &slo.ttft_ms
                                   : name == "tpot" ? &slo.tpot_ms
                                   : name == "e2e"  ? &slo.e2e_ms
                                                    : nullptr;
    if (bound == nullptr || equals == std::string::npos) {
      throw BenchError(
          "--slo " + text + ": '" + part +
          "' is no objective; use ttft=, tpot= and e2e=, such as ttft=200ms,tpot=30ms");
    }
    if (bound->has_value()) {
      throw BenchError("--slo " + text + ": " + name + " is given twice");
    }
    *bound = parse_milliseconds(part.substr(equals + 1), text);
    begin = end + 1;
  }
  return slo;
}

double RequestRecord::tpot_ms() const {
  return has_token && output_tokens > 1 ? (end_s - first_token_s) * 1e3 / (output_tokens - 1) : 0;
}

std::string RequestRecord::failure_name() const {
  switch (failure) {
    case FailureKind::kNone:
      return "";
    case FailureKind::kConnect:
      return "no connection";
    case FailureKind::kTimeout:
      return "timeout";
    case FailureKind::kHttpStatus:
      return "http " + std::to_string(http_status);
    case FailureKind::kBrokenStream:
      return "broken stream";
    case FailureKind::kMalformed:
      return "malformed answer";
    case FailureKind::kServerError:
      return "error in stream";
    case FailureKind::kCancelled:
      return "interrupted";
  }
  return "";
}

double percentile(const std::vector<double>& sorted, double q) {
  const double rank = q * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<std::size_t>(rank);
  const std::size_t above = std::min(below + 1, sorted.size() - 1);
  return sorted[below] + (rank - static_cast<double>(below)) * (sorted[above] - sorted[below]);
}

Distribution describe(std::vector<double> samples) {
  Distribution result;
  result.count = samples.size();
  if (samples.empty()) {
    return result;
  }
  std::sort(samples.begin(), samples.end());
  result.mean =
      std::accumulate(samples.begin(), samples.end(), 0.0) / static_cast<double>(samples.size());
  result.p50 = percentile(samples, 0.5);
  result.p90 = percentile(samples, 0.9);
  result.p99 = percentile(samples, 0.99);
  result.min = samples.front();
  result.max = samples.back();
  return result;
}

bool meets(const RequestRecord& record, const Slo& slo) {
  if (!record.ok()) {
    return false;
  }
  // A request that never showed a token can't have shown it in time.
  const bool ttft_met = !slo.ttft_ms || (record.has_token && record.ttft_ms() <= *slo.ttft_ms);
  const bool tpot_met = !slo.tpot_ms || record.tpot_ms() <= *slo.tpot_ms;
  return ttft_met && tpot_met && (!slo.e2e_ms || record.e2e_ms() <= *slo.e2e_ms);
}

Summary summarize(const std::vector<RequestRecord>& records, const Slo& slo) {
  Summary summary;
  summary.num_requests = records.size();
  if (records.empty()) {
    return summary;
  }
  double first_start = records.front().start_s;
  double last_end = records.front().end_s;
  std::vector<double> ttft, tpot, itl, e2e;
  for (const RequestRecord& record : records) {
    first_start = std::min(first_start, record.start_s);
    last_end = std::max(last_end, record.end_s);
    if (!record.ok()) {
      FailureCount& failure = summary.failures[record.failure_name()];
      if (failure.count++ == 0) {
        failure.example = record.failure_detail;
      }
      continue;
    }
    ++summary.num_ok;
    summary.num_good += meets(record, slo) ? 1 : 0;
    summary.prompt_tokens += record.prompt_tokens;
    summary.output_tokens += record.output_tokens;
    e2e.push_back(record.e2e_ms());
    if (record.has_token) {
      ttft.push_back(record.ttft_ms());
      itl.insert(itl.end(), record.token_gaps_ms.begin(), record.token_gaps_ms.end());
      if (record.output_tokens > 1) {
        tpot.push_back(record.tpot_ms());
      }
    }
  }
  summary.duration_s = last_end - first_start;
  summary.peak_concurrency = peak_in_flight(records);
  if (summary.duration_s > 0) {
    const double d = summary.duration_s;
    summary.request_throughput = static_cast<double>(summary.num_ok) / d;
    summary.goodput = static_cast<double>(summary.num_good) / d;
    summary.output_throughput = static_cast<double>(summary.output_tokens) / d;
    summary.total_throughput =
        static_cast<double>(summary.output_tokens + summary.prompt_tokens) / d;
  }
  summary.ttft_ms = describe(std::move(ttft));
  summary.tpot_ms = describe(std::move(tpot));
  summary.itl_ms = describe(std::move(itl));
  summary.e2e_ms = describe(std::move(e2e));
  return summary;
}

}  // namespace fastfd::bench
