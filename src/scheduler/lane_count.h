#pragma once

#include <cstdint>
#include <vector>

#include "fastfd/core/step_plan.h"
#include "scheduler/cost_model.h"

namespace fastfd::scheduler {

/// What one decode step of the cluster works on.
struct StepLoad {
  LaneWork busiest_server;   ///< the attention server with most work, all lanes together
  double cluster_rows = 0;   ///< what the FFN pool sees, all lanes together
  double min_lane_rows = 0;  ///< decode rows of the server with fewest (but some)
};

/// Times of one layer with everything known, in microseconds.
struct LayerTimes {
  double attention_us = 0;  ///< T_a of one lane
  double ffn_us = 0;        ///< T_f of one lane
  double transfer_us = 0;   ///< T_c, both ways
  double layer_us = 0;      ///< max(B T_a, B T_f, T_a + T_f + T_c)
};

/// Chooses the number of lanes by the cost of a layer (docs/architecture.md), from measured times.
/// Changes seldom: a change costs a bubble, so it must promise kMinGain in kConfirmations
/// evaluations in a row.
class LaneCount {
 public:
  /// `num_layers` 0: inferred from how many layers the FFN pool runs for each committed lane.
  explicit LaneCount(std::uint32_t num_layers) : num_layers_(num_layers) {}

  /// A (step, lane) committed everywhere it ran; `cluster_rows` over all attention servers.
  void on_lane_committed(double cluster_rows);
  /// All lanes of a server's step committed: what it spent, and how the pools stood to each other.
  void on_server_step(const StepLoad& load, std::uint32_t num_lanes, double busy_us, double wait_us,
                      const CostModel& attention);
  void observe(const FfnLoad& load);
  /// FFN servers may have restarted their counters.
  void forget_counters() { ffn_servers_.clear(); }

  std::uint32_t choose(std::uint32_t current, const StepLoad& load, const CostModel& attention);

  /// Zeros until both pools have been measured.
  LayerTimes predict(std::uint32_t num_lanes, const StepLoad& load,
                     const CostModel& attention) const;

 private:
  static constexpr double kMinGain = 0.1;
  static constexpr std::uint32_t kConfirmations = 3;
  static constexpr std::uint64_t kMinObservations = 32;

  struct FfnServer {
    bool known = false;
    FfnLoad last;
    double lanes_at_last = 0;  ///< lanes_committed_ then
    double rows_at_last = 0;
  };
  double layers() const;

  std::uint32_t num_layers_;
  double lanes_committed_ = 0;
  double rows_committed_ = 0;
  double layers_run_ = 0;  ///< of one FFN server on average, over the lanes in lanes_seen_
  double lanes_seen_ = 0;
  CostModel ffn_;  ///< one layer of one lane by its cluster rows
  bool transfer_known_ = false;
  double transfer_us_ = 0;
  std::vector<FfnServer> ffn_servers_;
  std::uint32_t favourite_ = 0;
  std::uint32_t times_favoured_ = 0;
};

}  // namespace fastfd::scheduler
