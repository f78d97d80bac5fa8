#pragma once

#include <atomic>
#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/thread_pool.hpp>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <string>
#include <unordered_set>

#include "fastfd/gateway/gateway_server.h"
#include "gateway/api_error.h"
#include "gateway/gateway_metrics.h"
#include "gateway/token_router.h"

namespace fastfd::gateway {

class Connection;

/// What all connections of a gateway share. Gateway thread only, but for what says otherwise.
class GatewayCore {
 public:
  explicit GatewayCore(GatewayOptions options);

  const GatewayOptions& options() const { return options_; }
  boost::asio::io_context& io() { return io_; }
  /// For work that would hold up the gateway thread.
  boost::asio::thread_pool& workers() { return workers_; }
  GatewayMetrics& metrics() { return metrics_; }
  TokenRouter& router() { return router_; }
  std::uint64_t random() { return random_(); }
  std::int64_t created() const { return created_; }

  /// From any thread.
  void set_model(ServedModel model);
  void set_engine(EngineClient* engine) { engine_.store(engine); }
  EngineClient* engine() const { return engine_.load(); }
  /// nullptr until set_model.
  std::shared_ptr<const ServedModel> model() const;

  /// Why no request can be taken now; nullopt: one can.
  std::optional<ApiError> not_ready() const;
  bool draining() const { return draining_; }

  /// One that comes while draining holds nothing up.
  void add(Connection* connection);
  void remove(Connection* connection);

  /// Whether a connection came after start_draining(): it is told so, if it asks for more than
  /// whether the server lives.
  bool is_late(Connection* connection) const { return late_.contains(connection); }
  /// Closes idle connections; the others close with their response. `drained` is called once only
  /// late ones are left.
  void start_draining(std::function<void()> drained);
  /// Ends what still runs.
  void abort_connections();
  /// When the gateway thread is gone: ends, on the caller's, all that is left.
  void finish();

 private:
  void schedule_tick();
  void tick();
  void report_if_drained();

  GatewayOptions options_;
  boost::asio::io_context io_{1};
  boost::asio::thread_pool workers_{1};
  GatewayMetrics metrics_;
  TokenRouter router_;
  std::mt19937_64 random_;
  std::int64_t created_;
  std::atomic<EngineClient*> engine_{nullptr};
  mutable std::mutex model_mutex_;
  std::shared_ptr<const ServedModel> model_;  // guarded by model_mutex_
  bool draining_ = false;
  std::function<void()> drained_;
  std::unordered_set<Connection*> connections_;
  std::unordered_set<Connection*> late_;  // among them
  boost::asio::steady_timer tick_timer_;
  std::chrono::milliseconds tick_;
  bool ticking_ = false;
};

}  // namespace fastfd::gateway
