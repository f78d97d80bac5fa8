#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <csignal>
#include <cstdlib>
#include <exception>
#include <memory>
#include <mutex>
#include <stdexcept>

#include "cluster/process_key.h"
#include "cluster/signal_watcher.h"
#include "fastfd/cluster/blueprint.h"
#include "fastfd/cluster/roles.h"
#include "fastfd/control_plane/control_server.h"
#include "fastfd/coordinator/engine.h"
#include "fastfd/core/logging.h"
#include "fastfd/core/stop_orders.h"
#include "fastfd/gateway/gateway_server.h"
#include "fastfd/gateway/model_text_service.h"

namespace fastfd::cluster {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

gateway::GatewayOptions gateway_options(const config::ClusterConfig& config) {
  gateway::GatewayOptions options;
  options.host = config.coordinator.http.host;
  options.port = config.coordinator.http.port;
  return options;
}

gateway::Reasoning reasoning_of(const config::ClusterConfig& config,
                                const gateway::TextService& text) {
  using config::ReasoningParser;
  const bool has_channels = text.channel_tokens().has_value();
  switch (config.model.reasoning_parser) {
    case ReasoningParser::kAuto:
      if (has_channels) {
        return gateway::Reasoning::kChannels;
      }
      return text.has_reasoning_tags() ? gateway::Reasoning::kTagged : gateway::Reasoning::kNone;
    case ReasoningParser::kQwen3:
      return gateway::Reasoning::kTagged;
    case ReasoningParser::kDeepSeekR1:
    case ReasoningParser::kMinimaxM2:
      return gateway::Reasoning::kImplied;
    case ReasoningParser::kGptOss:
      if (!has_channels) {
        throw config::ConfigError(fmt::format(
            "{}: model.reasoning_parser: openai_gptoss needs a vocabulary with <|start|>, "
            "<|channel|>, <|message|> and <|end|>, which {} lacks; use auto",
            config.source.string(), config.model.path.string()));
      }
      return gateway::Reasoning::kChannels;
    case ReasoningParser::kNone:
      break;
  }
  return gateway::Reasoning::kNone;
}

gateway::ServedModel served_model(const Blueprint& blueprint) {
  const auto& config = blueprint.config();
  const auto& spec = blueprint.spec();
  gateway::ServedModel model;
  model.name = config.model.served_name.empty()
                   ? std::filesystem::weakly_canonical(config.model.path).filename().string()
                   : config.model.served_name;
  model.max_model_len = blueprint.max_model_len();
  model.sampling.do_sample = spec.default_do_sample;
  model.sampling.temperature = spec.default_temperature;
  model.sampling.top_p = spec.default_top_p;
  model.sampling.top_k = spec.default_top_k;
  model.sampling.min_p = spec.default_min_p;
  model.sampling.repetition_penalty = spec.default_repetition_penalty;
  model.vocab_size = spec.vocab_size;
  model.eos_token_ids = spec.eos_token_ids;
  model.text = gateway::load_text_service(config.model.path);
  model.reasoning = reasoning_of(config, *model.text);
  if (model.text->vocab_size() > spec.vocab_size) {
    // An attention server would have no embedding for what a client may write.
    throw std::runtime_error(fmt::format(
        "{}: tokenizer.json has token ids up to {}, but config.json's vocab_size is {}; use the "
        "tokenizer that belongs to the checkpoint",
        config.model.path.string(), model.text->vocab_size() - 1, spec.vocab_size));
  }
  return model;
}

coordinator::EngineOptions engine_options(const Blueprint& blueprint) {
  const auto& faults = blueprint.config().faults;
  coordinator::EngineOptions options;
  options.scheduler = blueprint.scheduler_options();
  options.contract = blueprint.contract();
  options.placement_version = blueprint.placement().version;
  options.heartbeat_timeout = milliseconds(faults.heartbeat_timeout_ms);
  options.stall_timeout = milliseconds(faults.stall_timeout_ms);
  options.fence = [](Role role, ServerRank rank, std::uint32_t pid, const std::string& key) {
    const std::string name = control_plane::member_name(role, rank);
    if (const Status status = kill_process(pid, key); status) {
      spdlog::warn("{} (pid {}) is killed, or was gone already", name, pid);
    } else {
      spdlog::warn("{} is not killed: {}; its windows are abandoned", name, status.message());
    }
  };
  return options;
}

// Set once by the first signal; an impatient second one ends the process where it stands.
class StopRequest {
 public:
  void on_signal(const Signal& signal) {
    if (orders_.is_impatient(steady_clock::now(), signal.from_parent)) {
      std::_Exit(EXIT_FAILURE);
    }
    const std::lock_guard lock(mutex_);
    requested_ = true;
    changed_.notify_all();
  }
  void wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return requested_; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool requested_ = false;
  StopOrders orders_;
};

constexpr milliseconds kFarewell{200};

void run(const config::ClusterConfig& config) {
  SignalWatcher signals;
  // The port is taken before anything slow is begun: a taken port must not cost the weights' load.
  gateway::GatewayServer gateway(gateway_options(config));
  spdlog::info("listening on http://{}", config.coordinator.http.to_string());
  const Blueprint blueprint(config);
  if (blueprint.spec().has_recurrent_state() && config.attention.kv_cache.prefix_cache) {
    spdlog::info("the prefix cache is off: {} keeps state of a sequence that pages don't hold",
                 blueprint.spec().architecture);
  }
  gateway.set_model(served_model(blueprint));
  coordinator::Engine engine(engine_options(blueprint));
  auto control = std::make_unique<control_plane::ControlServer>(
      config.coordinator.control.to_string(), engine);
  gateway.set_engine(&engine);

  StopRequest stop;
  signals.set_handler([&stop](const Signal& signal) { stop.on_signal(signal); });
  stop.wait();
  const milliseconds timeout(config.faults.drain_timeout_ms);
  spdlog::info("draining: running requests may finish within {} s",
               static_cast<double>(timeout.count()) / 1000.0);
  engine.drain(timeout);
  // A little longer: the engine then tells the clients it cuts off why.
  gateway.drain(steady_clock::now() + timeout + kFarewell);
  engine.wait_drained(timeout);
  control.reset();
}

}  // namespace

void check_servable(const config::ClusterConfig& config) {
  const Blueprint blueprint(config);
  require_process_transport(config);
  served_model(blueprint);
}

int run_coordinator(const config::ClusterConfig& config) {
  init_logging("coordinator", config.log_level);
  try {
    run(config);
    spdlog::info("stopped");
    return EXIT_SUCCESS;
  } catch (const std::exception& error) {
    spdlog::error("{}", error.what());
    return EXIT_FAILURE;
  }
}

}  // namespace fastfd::cluster
