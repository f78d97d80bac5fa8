#include "scheduler/lane_count.h"

#include <algorithm>

namespace fastfd::scheduler {

void LaneCount::on_lane_committed(double cluster_rows) {
  lanes_committed_ += 1;
  rows_committed_ += cluster_rows;
}

void LaneCount::observe(const FfnLoad& load) {
  if (load.ffn_rank >= kMaxServers) {
    return;
  }
  if (load.ffn_rank >= ffn_servers_.size()) {
    ffn_servers_.resize(load.ffn_rank + 1);
  }
  FfnServer& server = ffn_servers_[load.ffn_rank];
  const bool continues = server.known && load.layers_run >= server.last.layers_run &&
                         load.compute_us >= server.last.compute_us;
  if (continues) {
    const auto layers_run = static_cast<double>(load.layers_run - server.last.layers_run);
    const double lanes = lanes_committed_ - server.lanes_at_last;
    if (layers_run <= 0 || lanes <= 0) {
      return;  // nothing to compare yet; keep the older reading
    }
    layers_run_ += layers_run;
    lanes_seen_ += lanes;
    const double rows = (rows_committed_ - server.rows_at_last) / lanes;
    ffn_.observe({rows, 0}, (load.compute_us - server.last.compute_us) / layers_run);
  }
  server = {true, load, lanes_committed_, rows_committed_};
}

double LaneCount::layers() const {
  if (num_layers_ > 0) {
    return num_layers_;
  }
  return lanes_seen_ > 0 ? std::max(1.0, layers_run_ / lanes_seen_) : 0.0;
}

LayerTimes LaneCount::predict(std::uint32_t num_lanes, const StepLoad& load,
                              const CostModel& attention) const {
  if (ffn_.num_observed() == 0 || attention.num_observed() == 0 || layers() <= 0 ||
      load.cluster_rows <= 0) {
    return {};
  }
  const double b = num_lanes;
  const LaneWork lane{load.busiest_server.rows / b, load.busiest_server.context / b};
  LayerTimes times;
  times.attention_us = attention.predict(lane) / layers();
  times.ffn_us = ffn_.predict({load.cluster_rows / b, 0});
  times.transfer_us = transfer_us_;
  times.layer_us = std::max({b * times.attention_us, b * times.ffn_us,
                             times.attention_us + times.ffn_us + times.transfer_us});
  return times;
}

void LaneCount::on_server_step(const StepLoad& load, std::uint32_t num_lanes, double busy_us,
                               double wait_us, const CostModel& attention) {
  const LayerTimes times = predict(num_lanes, load, attention);
  if (times.layer_us <= 0) {
    return;
  }
  // The transfer shows only where it is not hidden: with one lane, or when the layer took longer
  // than the busier pool explains.
  const double measured = (busy_us + wait_us) / layers();
  const double hidden_up_to = num_lanes * std::max(times.attention_us, times.ffn_us);
  if (num_lanes > 1 && measured <= 1.05 * hidden_up_to) {
    return;
  }
  const double sample = std::max(0.0, measured - times.attention_us - times.ffn_us);
  transfer_us_ = transfer_known_ ? transfer_us_ + (sample - transfer_us_) / 32 : sample;
  transfer_known_ = true;
}

std::uint32_t LaneCount::choose(std::uint32_t current, const StepLoad& load,
                                const CostModel& attention) {
  if (ffn_.num_observed() < 4 || attention.num_observed() < kMinObservations ||
      load.min_lane_rows < 2) {
    return current;
  }
  std::uint32_t best = current;
  double best_us = predict(current, load, attention).layer_us * (1.0 - kMinGain);
  const auto most =
      std::min<std::uint32_t>(kMaxLanes, static_cast<std::uint32_t>(load.min_lane_rows));
  for (std::uint32_t lanes = 1; lanes <= most; ++lanes) {
    const double layer_us = predict(lanes, load, attention).layer_us;
    if (lanes != current && layer_us < best_us) {
      best = lanes;
      best_us = layer_us;
    }
  }
  times_favoured_ = best == favourite_ ? times_favoured_ + 1 : 1;
  favourite_ = best;
  return times_favoured_ >= kConfirmations ? best : current;
}

}  // namespace fastfd::scheduler
