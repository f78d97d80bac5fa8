#pragma once

#include <vector>

#include "coordinator/pool_meter.h"
#include "fastfd/core/step_plan.h"

namespace fastfd::coordinator {

/// Where the servers' time went, from what they report.
class WorkMeters {
 public:
  WorkMeters(std::uint32_t num_attention_servers, std::uint32_t num_ffn_servers)
      : attention_(num_attention_servers),
        ffn_(num_ffn_servers),
        last_load_(num_ffn_servers),
        attention_pool_(num_attention_servers),
        ffn_pool_(num_ffn_servers) {}

  void add(const LaneResult& result, SteadyTime now) {
    const WorkTime work{result.compute_us, result.wait_us};
    add_to(&attention_.at(result.attention_rank), work);
    attention_pool_.add(work, now);
  }

  /// Loads are cumulative; a counter that went back belongs to a new process.
  void add(const FfnLoad& load, SteadyTime now) {
    WorkTime& last = last_load_.at(load.ffn_rank);
    if (load.compute_us < last.compute_us || load.wait_us < last.wait_us) {
      last = {};
    }
    const WorkTime work{load.compute_us - last.compute_us, load.wait_us - last.wait_us};
    last = {load.compute_us, load.wait_us};
    add_to(&ffn_.at(load.ffn_rank), work);
    ffn_pool_.add(work, now);
  }

  /// Sums by rank since the coordinator started.
  const std::vector<WorkTime>& attention() const { return attention_; }
  const std::vector<WorkTime>& ffn() const { return ffn_; }
  const PoolMeter& attention_pool() const { return attention_pool_; }
  const PoolMeter& ffn_pool() const { return ffn_pool_; }

 private:
  static void add_to(WorkTime* sum, const WorkTime& work) {
    sum->compute_us += work.compute_us;
    sum->wait_us += work.wait_us;
  }

  std::vector<WorkTime> attention_;
  std::vector<WorkTime> ffn_;
  std::vector<WorkTime> last_load_;
  PoolMeter attention_pool_;
  PoolMeter ffn_pool_;
};

}  // namespace fastfd::coordinator
