#include "bench/progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <utility>

namespace fastfd::bench {

std::string progress_line(const LoadProgress& progress, const Arrivals& arrivals,
                          double tokens_per_s, const std::string& phase) {
  // Whichever limit is nearer: requests or time.
  double share = 0;
  if (arrivals.num_requests > 0) {
    share = static_cast<double>(progress.finished) / static_cast<double>(arrivals.num_requests);
  }
  if (arrivals.duration_s > 0) {
    share = std::max(share, progress.elapsed_s / arrivals.duration_s);
  }
  share = std::clamp(share, 0.0, 1.0);
  constexpr int kBarCells = 24;
  const int full = static_cast<int>(share * kBarCells);
  std::string bar(static_cast<std::size_t>(full), '=');
  if (full < kBarCells) {
    bar += '>';
  }
  bar.resize(kBarCells, ' ');
  const std::string of_all =
      arrivals.num_requests > 0 ? fmt::format("/{}", arrivals.num_requests) : "";
  return fmt::format(
      "{}{}[{}] {:3.0f}%  {:.0f} s  {}{} requests  {} in flight  {} failed  {:.0f} tokens/s", phase,
      phase.empty() ? "" : " ", bar, share * 100, progress.elapsed_s, progress.finished, of_all,
      progress.started - progress.finished, progress.failed, tokens_per_s);
}

ProgressDisplay::ProgressDisplay(const Arrivals& arrivals, std::string phase)
    : arrivals_(arrivals), phase_(std::move(phase)), is_terminal_(::isatty(STDERR_FILENO) == 1) {}

ProgressDisplay::~ProgressDisplay() {
  if (is_terminal_ && shown_at_s_ > 0) {
    std::fputs("\r\x1b[K", stderr);
  }
}

void ProgressDisplay::show(const LoadProgress& progress) {
  constexpr double kPlainIntervalS = 2.0;
  const double interval_s = progress.elapsed_s - shown_at_s_;
  if (!is_terminal_ && interval_s < kPlainIntervalS) {
    return;
  }
  if (interval_s > 0) {
    const double rate = static_cast<double>(progress.token_chunks - shown_chunks_) / interval_s;
    // Ten looks a second are noisy: smooth them over about a second.
    chunks_per_s_ = is_terminal_ && shown_at_s_ > 0 ? 0.9 * chunks_per_s_ + 0.1 * rate : rate;
  }
  shown_at_s_ = progress.elapsed_s;
  shown_chunks_ = progress.token_chunks;
  const std::string line = progress_line(progress, arrivals_, chunks_per_s_, phase_);
  fmt::print(stderr, "{}{}{}", is_terminal_ ? "\r\x1b[K" : "", line, is_terminal_ ? "" : "\n");
  std::fflush(stderr);
}

}  // namespace fastfd::bench
