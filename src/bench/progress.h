#pragma once

#include <cstdint>
#include <string>

#include "bench/load_generator.h"

namespace fastfd::bench {

/// One line of progress: "[=====>    ]  52%  52/100 requests  1 failed  1234 tokens/s". `phase`,
/// if there is one, comes first: "warm-up [===...".
std::string progress_line(const LoadProgress& progress, const Arrivals& arrivals,
                          double tokens_per_s, const std::string& phase = {});

/// Shows progress on stderr: a bar that is redrawn on a terminal, else a line every two seconds.
class ProgressDisplay {
 public:
  explicit ProgressDisplay(const Arrivals& arrivals, std::string phase = {});
  /// Ends the bar's line.
  ~ProgressDisplay();
  ProgressDisplay(const ProgressDisplay&) = delete;
  ProgressDisplay& operator=(const ProgressDisplay&) = delete;

  void show(const LoadProgress& progress);

 private:
  Arrivals arrivals_;
  std::string phase_;
  bool is_terminal_;
  double shown_at_s_ = 0;
  std::uint64_t shown_chunks_ = 0;
  double chunks_per_s_ = 0;
};

}  // namespace fastfd::bench
