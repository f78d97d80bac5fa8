#include "gateway/gateway_core.h"

#include <algorithm>
#include <boost/asio/post.hpp>
#include <stdexcept>
#include <utility>
#include <vector>

#include "gateway/connection.h"

namespace fastfd::gateway {
namespace {

/// How often deadlines are looked at: one timer for all connections, none of their own.
std::chrono::milliseconds tick_for(const GatewayOptions& options) {
  const auto shortest =
      std::min({options.idle_timeout, options.request_timeout, options.write_timeout});
  return std::clamp(shortest / 4, std::chrono::milliseconds(5), std::chrono::milliseconds(1000));
}

}  // namespace

GatewayCore::GatewayCore(GatewayOptions options)
    : options_(std::move(options)),
      router_([this] { boost::asio::post(io_, [this] { router_.deliver(); }); }),
      random_(std::random_device{}()),
      created_(std::chrono::duration_cast<std::chrono::seconds>(
                   std::chrono::system_clock::now().time_since_epoch())
                   .count()),
      tick_timer_(io_),
      tick_(tick_for(options_)) {}

void GatewayCore::set_model(ServedModel model) {
  if (model.name.empty() || model.max_model_len < 2 || model.vocab_size == 0 ||
      model.text == nullptr) {
    throw std::invalid_argument(
        "a served model needs a name, a context of at least 2 tokens, a vocabulary and a text "
        "service");
  }
  auto shared = std::make_shared<const ServedModel>(std::move(model));
  const std::lock_guard lock(model_mutex_);
  model_ = std::move(shared);
}

std::shared_ptr<const ServedModel> GatewayCore::model() const {
  const std::lock_guard lock(model_mutex_);
  return model_;
}

std::optional<ApiError> GatewayCore::not_ready() const {
  if (draining_) {
    return unavailable("The server is shutting down.", "draining");
  }
  const EngineClient* client = engine();
  if (client == nullptr || model() == nullptr) {
    return unavailable("The server is starting: the model is not loaded yet.", "not_ready");
  }
  const EngineState state = client->state();
  if (state.draining) {
    return unavailable("The server is shutting down.", "draining");
  }
  if (!state.ready) {
    return unavailable(
        "The server is not ready: " + (state.detail.empty() ? "starting" : state.detail) + ".",
        "not_ready");
  }
  return std::nullopt;
}

void GatewayCore::add(Connection* connection) {
  connections_.insert(connection);
  if (draining_) {
    late_.insert(connection);
  }
  metrics_.connections().Increment();
  schedule_tick();
}

void GatewayCore::remove(Connection* connection) {
  late_.erase(connection);
  if (connections_.erase(connection) > 0) {
    metrics_.connections().Decrement();
    report_if_drained();
  }
}

void GatewayCore::schedule_tick() {
  if (ticking_ || connections_.empty()) {
    return;
  }
  ticking_ = true;
  tick_timer_.expires_after(tick_);
  tick_timer_.async_wait([this](const boost::system::error_code& error) {
    ticking_ = false;
    if (!error) {
      tick();
      schedule_tick();
    }
  });
}

void GatewayCore::tick() {
  const auto now = std::chrono::steady_clock::now();
  // A connection that expires may leave the set.
  const std::vector<Connection*> all(connections_.begin(), connections_.end());
  for (Connection* connection : all) {
    connection->check_deadline(now);
  }
}

void GatewayCore::start_draining(std::function<void()> drained) {
  draining_ = true;
  drained_ = std::move(drained);
  const std::vector<Connection*> all(connections_.begin(), connections_.end());
  for (Connection* connection : all) {
    connection->close_if_idle();
  }
  report_if_drained();
}

void GatewayCore::abort_connections() {
  const std::vector<Connection*> all(connections_.begin(), connections_.end());
  for (Connection* connection : all) {
    connection->abort();
  }
}

void GatewayCore::finish() {
  drained_ = nullptr;
  tick_timer_.cancel();
  workers_.join();
  do {
    abort_connections();
    io_.restart();
    io_.poll();
  } while (!connections_.empty());
}

void GatewayCore::report_if_drained() {
  if (draining_ && connections_.size() == late_.size() && drained_) {
    std::exchange(drained_, nullptr)();
  }
}

}  // namespace fastfd::gateway
