#include "fastfd/attention_server/attention_server.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <optional>
#include <string>

#include "attention_server/lane_runner.h"
#include "attention_server/sequence_table.h"
#include "fastfd/core/check.h"
#include "fastfd/core/epoch_loop.h"
#include "fastfd/core/lane_progress.h"
#include "fastfd/core/logging.h"

namespace fastfd::attention_server {
namespace {

using Clock = std::chrono::steady_clock;

// How long a wait for FFN servers lasts before the loop says whom it waits for and goes on waiting:
// the coordinator, not this server, decides who is hung.
constexpr std::chrono::seconds kWaitReport{5};

float to_us(Clock::duration duration) {
  return std::chrono::duration<float, std::micro>(duration).count();
}

// A lane between its first dispatch of a step and the sampled tokens of that step.
struct LaneFlight {
  bool in_flight = false;
  StepId step = 0;
  bool overlapped = false;
  LaneBatch batch;
  Clock::duration compute{};
  Clock::duration wait{};
};

}  // namespace

class AttentionServer::Impl {
 public:
  Impl(const AttentionServerOptions& options, const model::ModelSpec& spec,
       std::shared_ptr<const model::AttentionWeights> weights, ResultSink on_result,
       FailureSink on_failure)
      : options_(options),
        num_layers_(spec.num_layers),
        on_result_(std::move(on_result)),
        sequences_({.num_slots = options.num_slots,
                    .num_pages = options.num_pages,
                    .page_size = options.page_size,
                    .max_model_len = options.max_model_len,
                    .max_lane_rows = options.max_lane_rows,
                    .recurrent_state = spec.has_recurrent_state()}),
        runner_(options, spec, std::move(weights)),
        loop_(
            "attention-" + std::to_string(options.rank), [this] { return serve_epoch(); },
            std::move(on_failure)) {}

  void begin_epoch(Epoch epoch, std::shared_ptr<transport::AttentionPort> port,
                   ExpertPlacement placement) {
    placement_ = std::move(placement);
    loop_.begin(epoch, std::move(port));
  }

  void submit_plan(AttentionStepPlan plan) { loop_.submit(std::move(plan)); }
  void stop_epoch() { loop_.stop(); }
  ServerProgress progress() const { return progress_.read(); }

 private:
  // Runs plans until the epoch is abandoned or something fails.
  Status serve_epoch() {
    auto& port = loop_.port();
    sequences_.reset();
    runner_.begin_epoch(&port, &placement_, loop_.abort_word());
    progress_.reset();
    for (auto& flight : flights_) {
      flight.in_flight = false;
    }
    for (;;) {
      std::optional<AttentionStepPlan> plan = loop_.take(/*block=*/false);
      if (!plan) {
        // Nothing to overlap with: finish what is in flight, one lane at a time, because each
        // result may bring the plan that the next lane's finish could be overlapped with.
        if (LaneFlight* flight = oldest_flight()) {
          if (auto status = finish(port, *flight); !status) {
            return status;
          }
          continue;
        }
        plan = loop_.take(/*block=*/true);
        if (!plan) {
          return {StatusCode::kAborted, "epoch abandoned"};
        }
      }
      if (auto status = run_step(port, *plan); !status) {
        return status;
      }
    }
  }

  // Lanes start in ascending order, so the first in flight is also the first to be answered.
  LaneFlight* oldest_flight() {
    LaneFlight* oldest = nullptr;
    for (auto& flight : flights_) {
      if (flight.in_flight && (oldest == nullptr || flight.step < oldest->step)) {
        oldest = &flight;
      }
    }
    return oldest;
  }

  Status run_step(transport::AttentionPort& port, const AttentionStepPlan& plan) {
    std::array<const AttentionLanePlan*, kMaxLanes> lane_plans{};
    for (const auto& lane : plan.lanes) {
      check(lane.lane < kMaxLanes, "plan names a lane that does not exist");
      lane_plans[lane.lane] = &lane;
    }
    if (plan.barrier) {
      if (auto status = finish_all(port); !status) {
        return status;
      }
    }
    for (LaneId lane = 0; lane < kMaxLanes; ++lane) {
      if (flights_[lane].in_flight) {
        if (auto status = finish(port, flights_[lane]); !status) {
          return status;
        }
      }
      if (lane_plans[lane] != nullptr) {
        if (auto status = start(plan, *lane_plans[lane]); !status) {
          return status;
        }
      }
    }
    for (std::uint32_t layer = 1; layer < num_layers_; ++layer) {
      for (LaneId lane = 0; lane < kMaxLanes; ++lane) {
        if (lane_plans[lane] != nullptr && flights_[lane].in_flight) {
          if (auto status = advance(port, flights_[lane], layer); !status) {
            return status;
          }
        }
      }
    }
    return Status::ok();
  }

  Status finish_all(transport::AttentionPort& port) {
    while (LaneFlight* flight = oldest_flight()) {
      if (auto status = finish(port, *flight); !status) {
        return status;
      }
    }
    return Status::ok();
  }

  transport::HopId hop(const LaneFlight& flight, std::uint32_t layer) const {
    return {.epoch = loop_.epoch(),
            .step = flight.step,
            .layer = layer,
            .lane = static_cast<LaneId>(&flight - flights_.data())};
  }

  Status start(const AttentionStepPlan& plan, const AttentionLanePlan& lane_plan) {
    const auto began = Clock::now();
    LaneFlight& flight = flights_[lane_plan.lane];
    if (auto status = sequences_.build(lane_plan, flight.batch); !status) {
      return status;
    }
    if ((lane_plan.participants >> options_.rank & 1U) == 0) {
      return Status::ok();  // only rows that leave
    }
    flight.step = plan.step;
    flight.compute = {};
    flight.wait = {};
    flight.overlapped = lane_plan.lane == 0 &&
                        std::any_of(flights_.begin(), flights_.end(), [&](const LaneFlight& other) {
                          return other.in_flight && other.step < plan.step;
                        });
    flight.in_flight = true;
    const auto id = hop(flight, 0);
    progress_.set(id.lane, {.step = id.step, .layer = 0, .waiting = false});
    runner_.copy_pages(flight.batch);
    auto status = runner_.embed(id.lane, flight.batch);
    if (status) {
      status = runner_.normalize_first(id.lane, flight.batch);
    }
    if (status) {
      status = runner_.attend_and_dispatch(id, flight.batch);
    }
    flight.compute += Clock::now() - began;
    return status;
  }

  Status advance(transport::AttentionPort& port, LaneFlight& flight, std::uint32_t layer) {
    const auto id = hop(flight, layer);
    const auto previous = hop(flight, layer - 1);
    if (auto status = wait(port, flight, previous); !status) {
      return status;
    }
    const auto began = Clock::now();
    progress_.set(id.lane, {.step = id.step, .layer = layer, .waiting = false});
    auto status = runner_.combine(previous, flight.batch);
    if (status) {
      status = runner_.attend_and_dispatch(id, flight.batch);
    }
    flight.compute += Clock::now() - began;
    return status;
  }

  Status finish(transport::AttentionPort& port, LaneFlight& flight) {
    const auto last = hop(flight, num_layers_ - 1);
    if (auto status = wait(port, flight, last); !status) {
      return status;
    }
    const auto began = Clock::now();
    if (auto status = runner_.sample(last, flight.batch, sequences_, outputs_); !status) {
      return status;
    }
    LaneResult result{.epoch = loop_.epoch(),
                      .step = flight.step,
                      .attention_rank = options_.rank,
                      .lane = last.lane,
                      .tokens = {},
                      .num_rows = flight.batch.num_rows,
                      .overlapped = flight.overlapped};
    result.tokens.reserve(outputs_.size());
    for (std::size_t i = 0; i < outputs_.size(); ++i) {
      const SampleRow& row = flight.batch.samples[i];
      sequences_.set_sampled(row, outputs_[i].token);
      result.tokens.push_back({.slot = row.slot,
                               .generation = row.generation,
                               .position = row.position,
                               .token = outputs_[i].token,
                               .logprob = outputs_[i].logprob,
                               .top_logprobs = std::move(outputs_[i].top_logprobs)});
    }
    flight.in_flight = false;
    flight.compute += Clock::now() - began;
    result.compute_us = to_us(flight.compute);
    result.wait_us = to_us(flight.wait);
    progress_.set(last.lane, {.step = last.step, .layer = num_layers_, .waiting = false});
    on_result_(std::move(result));
    return Status::ok();
  }

  Status wait(transport::AttentionPort& port, LaneFlight& flight, const transport::HopId& id) {
    if (port.combine_ready(id)) {
      return loop_.aborted() ? Status{StatusCode::kAborted, "epoch abandoned"} : Status::ok();
    }
    progress_.set(id.lane, {.step = id.step, .layer = id.layer, .waiting = true});
    const auto began = Clock::now();
    if (options_.fetches_while_waiting) {
      runner_.fetch_weights_after(id, [&] { return port.combine_ready(id) || loop_.aborted(); });
    }
    for (;;) {
      switch (port.wait_combine(id, kWaitReport)) {
        case transport::WaitOutcome::kReady:
          flight.wait += Clock::now() - began;
          return Status::ok();
        case transport::WaitOutcome::kAborted:
          return {StatusCode::kAborted, "epoch abandoned"};
        default:
          spdlog::warn("step {} layer {} lane {}: still waiting for {}", id.step, id.layer, id.lane,
                       port.missing_peers(id));
      }
    }
  }

  const AttentionServerOptions options_;
  const std::uint32_t num_layers_;
  const ResultSink on_result_;

  ExpertPlacement placement_;  // written between epochs
  LaneProgressBoard progress_;

  // Loop thread only.
  SequenceTable sequences_;
  LaneRunner runner_;
  std::array<LaneFlight, kMaxLanes> flights_;
  std::vector<kernels::SamplingOutput> outputs_;

  EpochLoop<AttentionStepPlan, transport::AttentionPort> loop_;  // last: it uses all of the above
};

AttentionServer::AttentionServer(const AttentionServerOptions& options,
                                 const model::ModelSpec& spec,
                                 std::shared_ptr<const model::AttentionWeights> weights,
                                 ResultSink on_result, FailureSink on_failure)
    : impl_(std::make_unique<Impl>(options, spec, std::move(weights), std::move(on_result),
                                   std::move(on_failure))) {}
AttentionServer::~AttentionServer() = default;

void AttentionServer::begin_epoch(Epoch epoch, std::shared_ptr<transport::AttentionPort> port,
                                  ExpertPlacement placement) {
  impl_->begin_epoch(epoch, std::move(port), std::move(placement));
}
void AttentionServer::submit_plan(AttentionStepPlan plan) { impl_->submit_plan(std::move(plan)); }
void AttentionServer::stop_epoch() { impl_->stop_epoch(); }
ServerProgress AttentionServer::progress() const { return impl_->progress(); }

}  // namespace fastfd::attention_server
