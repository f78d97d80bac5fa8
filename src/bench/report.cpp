#include "bench/report.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

namespace fastfd::bench {
namespace {

using nlohmann::json;

std::string load_text(const ServeBenchOptions& options) {
  std::string text = options.request_rate
                         ? fmt::format("Poisson arrivals, {:g} requests/s", *options.request_rate)
                         : fmt::format("closed loop, {} clients", options.concurrency);
  if (options.request_rate && options.concurrency > 0) {
    text += fmt::format(", at most {} in flight", options.concurrency);
  }
  return text;
}

std::string slo_text(const Slo& slo) {
  std::string text;
  const auto add = [&text](const char* name, const std::optional<double>& bound) {
    if (bound) {
      text += fmt::format("{}{} <= {:g} ms", text.empty() ? "" : ", ", name, *bound);
    }
  };
  add("TTFT", slo.ttft_ms);
  add("TPOT", slo.tpot_ms);
  add("end-to-end", slo.e2e_ms);
  return text;
}

std::string latency_row(const char* name, const Distribution& d) {
  if (d.count == 0) {
    return fmt::format("{:<24}{:>10}{:>10}{:>10}{:>10}{:>10}\n", name, "-", "-", "-", "-", "-");
  }
  return fmt::format("{:<24}{:>10.2f}{:>10.2f}{:>10.2f}{:>10.2f}{:>10.2f}\n", name, d.mean, d.p50,
                     d.p90, d.p99, d.max);
}

json distribution_json(const Distribution& d) {
  return {{"count", d.count}, {"mean", d.mean}, {"p50", d.p50}, {"p90", d.p90},
          {"p99", d.p99},     {"min", d.min},   {"max", d.max}};
}

json optional_json(const std::optional<double>& value) { return value ? json(*value) : json(); }

json options_json(const Report& report) {
  const ServeBenchOptions& options = report.options;
  return {{"url", options.url},
          {"model", report.dialect.model},
          {"endpoint", endpoint_path(report.dialect.endpoint)},
          {"request_rate", optional_json(options.request_rate)},
          {"concurrency", options.concurrency},
          {"num_requests", options.num_requests},
          {"duration_s", options.duration_s},
          {"dataset", options.dataset.string()},
          {"input_len", options.input_len},
          {"output_len", options.output_len},
          {"range_ratio", options.range_ratio},
          {"token_prompts", report.token_prompts},
          {"ignore_eos", report.dialect.ignore_eos},
          {"usage_from_server", report.dialect.usage},
          {"seed", options.seed},
          {"temperature", optional_json(options.temperature)},
          {"slo",
           {{"ttft_ms", optional_json(options.slo.ttft_ms)},
            {"tpot_ms", optional_json(options.slo.tpot_ms)},
            {"e2e_ms", optional_json(options.slo.e2e_ms)}}}};
}

json request_json(const RequestRecord& record) {
  json request{{"start_s", record.start_s},
               {"e2e_ms", record.e2e_ms()},
               {"prompt_tokens", record.prompt_tokens},
               {"output_tokens", record.output_tokens}};
  if (record.has_token) {
    request["ttft_ms"] = record.ttft_ms();
    request["tpot_ms"] = record.tpot_ms();
  }
  if (!record.ok()) {
    request["failure"] = record.failure_name();
    request["detail"] = record.failure_detail;
  }
  return request;
}

}  // namespace

std::string table(const Report& report) {
  const Summary& s = report.summary;
  const std::string rule(74, '-');
  std::string out = fmt::format("{:=^74}\n", " Serving benchmark ");
  const auto row = [&out](const char* name, const std::string& value) {
    out += fmt::format("{:<24}{}\n", name, value);
  };
  row("server", report.options.url + endpoint_path(report.dialect.endpoint));
  row("model", report.dialect.model);
  row("load", load_text(report.options));
  row("measured", fmt::format("{:.2f} s{}", s.duration_s,
                              report.interrupted ? " (interrupted)"
                              : report.given_up  ? " (server away, ended early)"
                                                 : ""));
  row("requests", fmt::format("{} ok, {} failed, at most {} in flight", s.num_ok,
                              s.num_requests - s.num_ok, s.peak_concurrency));
  for (const auto& [name, failure] : s.failures) {
    row("  failed", fmt::format("{} x {}{}{}", failure.count, name,
                                failure.example.empty() ? "" : ": ", failure.example));
  }
  row("tokens",
      fmt::format("{} prompt, {} output{}", s.prompt_tokens, s.output_tokens,
                  report.dialect.usage ? "" : " (chunks counted: server sends no usage)"));
  row("request throughput", fmt::format("{:.2f} requests/s", s.request_throughput));
  row("output throughput", fmt::format("{:.1f} tokens/s", s.output_throughput));
  row("total throughput", fmt::format("{:.1f} tokens/s", s.total_throughput));
  if (!report.options.slo.empty()) {
    const double share = s.num_requests > 0 ? 100.0 * static_cast<double>(s.num_good) /
                                                  static_cast<double>(s.num_requests)
                                            : 0;
    row("goodput", fmt::format("{:.2f} requests/s, {:.1f} % of all ({})", s.goodput, share,
                               slo_text(report.options.slo)));
  }
  out += rule + "\n";
  out += fmt::format("{:<24}{:>10}{:>10}{:>10}{:>10}{:>10}\n", "milliseconds", "mean", "p50", "p90",
                     "p99", "max");
  out += latency_row("TTFT, first token", s.ttft_ms);
  out += latency_row("TPOT, per output token", s.tpot_ms);
  out += latency_row("ITL, between chunks", s.itl_ms);
  out += latency_row("end-to-end", s.e2e_ms);
  out += rule + "\n";
  return out;
}

json to_json(const Report& report) {
  const Summary& s = report.summary;
  json failures = json::array();
  for (const auto& [name, failure] : s.failures) {
    failures.push_back({{"kind", name}, {"count", failure.count}, {"example", failure.example}});
  }
  json requests = json::array();
  for (const RequestRecord& record : report.records) {
    requests.push_back(request_json(record));
  }
  return {{"options", options_json(report)},
          {"interrupted", report.interrupted},
          {"given_up", report.given_up},
          {"duration_s", s.duration_s},
          {"num_requests", s.num_requests},
          {"num_ok", s.num_ok},
          {"num_failed", s.num_requests - s.num_ok},
          {"num_good", s.num_good},
          {"failures", std::move(failures)},
          {"prompt_tokens", s.prompt_tokens},
          {"output_tokens", s.output_tokens},
          {"request_throughput", s.request_throughput},
          {"output_throughput", s.output_throughput},
          {"total_throughput", s.total_throughput},
          {"goodput", s.goodput},
          {"peak_concurrency", s.peak_concurrency},
          {"ttft_ms", distribution_json(s.ttft_ms)},
          {"tpot_ms", distribution_json(s.tpot_ms)},
          {"itl_ms", distribution_json(s.itl_ms)},
          {"e2e_ms", distribution_json(s.e2e_ms)},
          {"requests", std::move(requests)}};
}

}  // namespace fastfd::bench
