#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>

#include "bench/report.h"

namespace fastfd::bench {
namespace {

constexpr double kPlotWidth = 420;
constexpr double kPlotHeight = 220;
constexpr double kMargin = 44;

struct Point {
  double x, y;
};

std::string escape(const std::string& text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      default:
        out += c;
    }
  }
  return out;
}

/// A line plot as an SVG element; both axes begin at 0.
std::string plot(const std::string& title, const std::string& x_label, const std::string& y_label,
                 const std::vector<Point>& points) {
  double x_max = 0;
  double y_max = 0;
  for (const Point& point : points) {
    x_max = std::max(x_max, point.x);
    y_max = std::max(y_max, point.y);
  }
  if (points.empty() || x_max <= 0 || y_max <= 0) {
    return fmt::format("<figure><figcaption>{}: no data</figcaption></figure>\n", escape(title));
  }
  std::string path;
  for (const Point& point : points) {
    path += fmt::format("{:.1f},{:.1f} ", kMargin + point.x / x_max * kPlotWidth,
                        kMargin / 2 + (1 - point.y / y_max) * kPlotHeight);
  }
  std::string grid;
  constexpr int kTicks = 4;
  for (int i = 0; i <= kTicks; ++i) {
    const double share = static_cast<double>(i) / kTicks;
    const double x = kMargin + share * kPlotWidth;
    const double y = kMargin / 2 + (1 - share) * kPlotHeight;
    grid += fmt::format(
        "<line x1='{0}' x2='{1}' y1='{2:.1f}' y2='{2:.1f}'/><text x='{3}' y='{2:.1f}' "
        "text-anchor='end' dy='4'>{4:.3g}</text>",
        kMargin, kMargin + kPlotWidth, y, kMargin - 5, share * y_max);
    grid += fmt::format("<text x='{:.1f}' y='{}' text-anchor='middle'>{:.3g}</text>", x,
                        kMargin / 2 + kPlotHeight + 15, share * x_max);
  }
  return fmt::format(
      "<figure><figcaption>{}</figcaption><svg viewBox='0 0 {} {}' role='img'>{}"
      "<polyline points='{}'/><text x='{}' y='{}' text-anchor='middle'>{}</text>"
      "<text x='4' y='12'>{}</text></svg></figure>\n",
      escape(title), kPlotWidth + kMargin + 20, kPlotHeight + kMargin + 24, grid, path,
      kMargin + kPlotWidth / 2, kPlotHeight + kMargin + 14, escape(x_label), escape(y_label));
}

/// Cumulative distribution, thinned out to a drawable number of points.
std::vector<Point> cumulative(std::vector<double> samples) {
  constexpr std::size_t kMaxPoints = 400;
  std::sort(samples.begin(), samples.end());
  std::vector<Point> points;
  const std::size_t stride = std::max<std::size_t>(1, samples.size() / kMaxPoints);
  for (std::size_t i = 0; i < samples.size(); i += stride) {
    points.push_back(
        {samples[i], 100.0 * static_cast<double>(i + 1) / static_cast<double>(samples.size())});
  }
  if (!samples.empty()) {
    points.push_back({samples.back(), 100});
  }
  return points;
}

/// Output tokens per second over time; tokens of a request are spread from its first to its last.
std::vector<Point> throughput_over_time(const Report& report) {
  constexpr int kBins = 60;
  double end_s = 0;
  for (const RequestRecord& record : report.records) {
    end_s = std::max(end_s, record.end_s);
  }
  const double bin_s = end_s / kBins;
  std::vector<Point> points;
  if (bin_s <= 0) {
    return points;
  }
  std::vector<double> tokens(kBins + 1, 0);
  for (const RequestRecord& record : report.records) {
    if (!record.ok() || !record.has_token) {
      continue;
    }
    double time_s = record.first_token_s;
    const double per_chunk = static_cast<double>(record.output_tokens) /
                             static_cast<double>(record.token_gaps_ms.size() + 1);
    tokens[static_cast<std::size_t>(time_s / bin_s)] += per_chunk;
    for (const float gap_ms : record.token_gaps_ms) {
      time_s += gap_ms * 1e-3;
      tokens[std::min<std::size_t>(static_cast<std::size_t>(time_s / bin_s), kBins)] += per_chunk;
    }
  }
  for (int bin = 0; bin < kBins; ++bin) {
    points.push_back({(bin + 0.5) * bin_s, tokens[static_cast<std::size_t>(bin)] / bin_s});
  }
  return points;
}

std::vector<double> of_successful(const Report& report,
                                  const std::function<double(const RequestRecord&)>& value) {
  std::vector<double> values;
  for (const RequestRecord& record : report.records) {
    if (record.ok() && record.has_token) {
      values.push_back(value(record));
    }
  }
  return values;
}

}  // namespace

std::string to_html(const Report& report) {
  std::vector<double> gaps;
  for (const RequestRecord& record : report.records) {
    if (record.ok()) {
      gaps.insert(gaps.end(), record.token_gaps_ms.begin(), record.token_gaps_ms.end());
    }
  }
  std::string out =
      "<!doctype html>\n<html lang='en'><meta charset='utf-8'><title>FastFD serving "
      "benchmark</title>\n<style>body{font:15px system-ui,sans-serif;max-width:1000px;margin:2em "
      "auto;padding:0 1em;color:#222}pre{background:#f5f5f5;padding:1em;overflow:auto}"
      "figure{display:inline-block;width:470px;margin:8px}figcaption{font-weight:600}"
      "svg text{font-size:11px;fill:#555}line{stroke:#ddd}"
      "polyline{fill:none;stroke:#2563eb;stroke-width:1.8}</style>\n<h1>Serving benchmark</h1>\n";
  out += "<pre>" + escape(table(report)) + "</pre>\n";
  out += plot("Time to first token", "ms", "% of requests",
              cumulative(of_successful(report, &RequestRecord::ttft_ms)));
  out += plot("Time per output token", "ms", "% of requests",
              cumulative(of_successful(report, &RequestRecord::tpot_ms)));
  out += plot("Inter-token latency", "ms", "% of chunks", cumulative(std::move(gaps)));
  out += plot("End-to-end latency", "ms", "% of requests",
              cumulative(of_successful(report, &RequestRecord::e2e_ms)));
  out += plot("Output throughput over time", "s", "tokens/s", throughput_over_time(report));
  out += "</html>\n";
  return out;
}

}  // namespace fastfd::bench
