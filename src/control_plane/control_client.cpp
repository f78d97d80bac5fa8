#include "fastfd/control_plane/control_client.h"

#include <fmt/format.h>
#include <grpcpp/grpcpp.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <random>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include "control_plane/convert.h"
#include "fastfd/core/printable.h"
#include "fastfd/v1/cluster.grpc.pb.h"

namespace fastfd::control_plane {
namespace {

using JoinStream = grpc::ClientReaderWriter<v1::ServerMessage, v1::CoordinatorMessage>;

std::shared_ptr<grpc::Channel> make_channel(const std::string& address) {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(kMaxMessageBytes);
  arguments.SetMaxSendMessageSize(kMaxMessageBytes);
  // Start order must not matter: look again soon, and give up on a silent address soon.
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 2000);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 500);
  // A coordinator whose host is gone closes no connection.
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, 10000);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 5000);
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  // Otherwise a client after a coordinator's restart could share the dead connection.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  return grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments);
}

/// Messages of one stream on their way out; closed with the stream.
class Outbox {
 public:
  void push(ServerMessage message) {
    {
      const std::lock_guard lock(mutex_);
      if (!open_) {
        return;
      }
      messages_.push_back(std::move(message));
    }
    changed_.notify_one();
  }

  void open() {
    const std::lock_guard lock(mutex_);
    open_ = true;
    messages_.clear();
  }

  void close() {
    {
      const std::lock_guard lock(mutex_);
      open_ = false;
      messages_.clear();
    }
    changed_.notify_all();
  }

  /// Waits for messages, at most until `deadline`. False: closed.
  bool take(std::chrono::steady_clock::time_point deadline, std::vector<ServerMessage>* batch) {
    std::unique_lock lock(mutex_);
    changed_.wait_until(lock, deadline, [this] { return !open_ || !messages_.empty(); });
    batch->swap(messages_);
    return open_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<ServerMessage> messages_;
  bool open_ = false;
};

/// Runs on_topology on a thread of its own, so that a stop can reach a server that connects.
class TopologyRunner {
 public:
  TopologyRunner(ServerHandler& handler, Outbox& outbox) : handler_(handler), outbox_(outbox) {}

  void start(Topology topology) {
    abandon();
    thread_ =
        std::jthread([this, topology = std::move(topology)](const std::stop_token& abandoned) {
          const Status status = handler_.on_topology(topology, abandoned);
          if (abandoned.stop_requested()) {
            return;
          }
          if (status) {
            outbox_.push(Ready{topology.epoch});
          } else {
            outbox_.push(Failure{status.to_string()});
          }
        });
  }

  /// Blocks until on_topology has returned.
  void abandon() {
    if (thread_.joinable()) {
      thread_.request_stop();
      thread_.join();
    }
  }

 private:
  ServerHandler& handler_;
  Outbox& outbox_;
  std::jthread thread_;
};

}  // namespace

class ControlClient::Impl {
 public:
  Impl(ControlClientOptions options, Registration registration, ServerHandler& handler)
      : options_(std::move(options)),
        registration_(std::move(registration)),
        handler_(handler),
        topology_runner_(handler, outbox_) {}

  void run() {
    while (!stopped() && connect()) {
      const std::string reason = serve_stream();
      if (finished_) {
        return;
      }
      handler_.on_disconnect(reason);
      if (!stopped()) {
        spdlog::warn("the stream to the coordinator at {} ended ({}); connecting again",
                     options_.coordinator_address, reason);
        pause(std::chrono::milliseconds(100));
      }
    }
  }

  void stop() {
    {
      const std::lock_guard lock(mutex_);
      stopped_ = true;
      if (context_ != nullptr) {
        context_->TryCancel();
      }
    }
    stop_requested_.notify_all();
  }

  void send(ServerMessage message) { outbox_.push(std::move(message)); }

 private:
  bool stopped() const {
    const std::lock_guard lock(mutex_);
    return stopped_;
  }

  void pause(std::chrono::milliseconds duration) {
    std::unique_lock lock(mutex_);
    stop_requested_.wait_for(lock, duration, [this] { return stopped_; });
  }

  /// Blocks until there is a connection; false when stopped.
  bool connect() {
    channel_ = make_channel(options_.coordinator_address);
    const auto started = std::chrono::steady_clock::now();
    auto next_log = started + std::chrono::milliseconds(500);
    while (!stopped()) {
      // gRPC's wait can't be interrupted, so it is cut into pieces that stop() may wait for.
      if (channel_->WaitForConnected(std::chrono::system_clock::now() +
                                     std::chrono::milliseconds(250))) {
        return true;
      }
      const auto now = std::chrono::steady_clock::now();
      if (now >= next_log) {
        spdlog::info("waiting for the coordinator at {} ({} s so far)",
                     options_.coordinator_address,
                     std::chrono::duration_cast<std::chrono::seconds>(now - started).count());
        next_log = now + options_.log_interval;
      }
    }
    return false;
  }

  /// One stream from registration to its end; returns why it ended.
  std::string serve_stream() {
    const auto stub = v1::Cluster::NewStub(channel_);
    grpc::ClientContext context;
    {
      const std::lock_guard lock(mutex_);
      if (stopped_) {
        return "stopped";
      }
      context_ = &context;
    }
    const auto stream = stub->Join(&context);
    outbox_.open();
    outbox_.push(registration_);
    std::thread writer([&] { write_to(*stream); });
    std::string reason = read_from(*stream);
    topology_runner_.abandon();
    outbox_.close();
    writer.join();
    stream->WritesDone();
    if (!reason.empty()) {
      context.TryCancel();  // this side ends it; what the coordinator still says is of no use
    }
    const grpc::Status status = stream->Finish();
    {
      const std::lock_guard lock(mutex_);
      context_ = nullptr;
    }
    if (reason.empty()) {
      reason = status.ok() ? "the coordinator closed it" : status.error_message();
    }
    return reason;
  }

  void write_to(JoinStream& stream) {
    v1::ServerMessage proto;
    std::vector<ServerMessage> batch;
    auto next_heartbeat = std::chrono::steady_clock::now() + options_.heartbeat_interval;
    while (outbox_.take(next_heartbeat, &batch)) {
      const auto now = std::chrono::steady_clock::now();
      if (now >= next_heartbeat) {
        batch.emplace_back(handler_.heartbeat());
        next_heartbeat = now + options_.heartbeat_interval;
      }
      for (std::size_t i = 0; i < batch.size(); ++i) {
        to_proto(batch[i], &proto);
        grpc::WriteOptions write_options;
        if (i + 1 < batch.size()) {
          write_options.set_buffer_hint();
        }
        if (!stream.Write(proto, write_options)) {
          return;  // the reader learns of it too
        }
      }
      batch.clear();
    }
  }

  /// Until the stream or the membership ends. Returns why if it was this side that ended it.
  std::string read_from(JoinStream& stream) {
    v1::CoordinatorMessage proto;
    CoordinatorMessage message;
    while (!finished_ && stream.Read(&proto)) {
      if (auto error = from_proto(proto, &message); !error.empty()) {
        return "the coordinator broke the protocol: " + error;
      }
      std::visit([this](auto& value) { handle(value); }, message);
    }
    return {};
  }

  void handle(Topology& topology) {
    registration_.last_epoch = std::max(registration_.last_epoch, topology.epoch);
    topology_runner_.start(std::move(topology));
  }
  void handle(const Go& go) {
    topology_runner_.abandon();  // it has returned: Ready was sent
    handler_.on_go(go.epoch);
  }
  void handle(AttentionStepPlan& plan) { handler_.on_plan(std::move(plan)); }
  void handle(FfnStepPlan& plan) { handler_.on_plan(std::move(plan)); }
  void handle(const Stop& stop) {
    topology_runner_.abandon();
    spdlog::warn("epoch {} ends: {}", stop.next_epoch - 1, printable(stop.reason));
    registration_.last_epoch = std::max(registration_.last_epoch, stop.next_epoch);
    handler_.on_stop(stop.next_epoch);
    outbox_.push(StopAck{stop.next_epoch});
  }
  void handle(const Shutdown& /*shutdown*/) {
    topology_runner_.abandon();
    finished_ = true;
    handler_.on_shutdown();
  }
  void handle(const Refused& refused) {
    topology_runner_.abandon();
    finished_ = true;
    handler_.on_refused(refused.reason);
  }

  const ControlClientOptions options_;
  Registration registration_;
  ServerHandler& handler_;
  Outbox outbox_;
  TopologyRunner topology_runner_;
  std::shared_ptr<grpc::Channel> channel_;
  bool finished_ = false;  // told to end: no reconnection

  mutable std::mutex mutex_;
  std::condition_variable stop_requested_;
  bool stopped_ = false;
  grpc::ClientContext* context_ = nullptr;  // of the stream that is open
};

ControlClient::ControlClient(ControlClientOptions options, Registration registration,
                             ServerHandler& handler)
    : impl_(std::make_unique<Impl>(std::move(options), std::move(registration), handler)) {}
ControlClient::~ControlClient() = default;

void ControlClient::run() { impl_->run(); }
void ControlClient::stop() { impl_->stop(); }
void ControlClient::send_result(LaneResult result) { impl_->send(std::move(result)); }
void ControlClient::send_failure(const Status& status) { impl_->send(Failure{status.to_string()}); }

std::uint64_t draw_incarnation() {
  std::random_device device;
  return (static_cast<std::uint64_t>(device()) << 32) | device();
}

Result<ClusterStatus> fetch_status(const std::string& coordinator_address,
                                   std::chrono::milliseconds timeout) {
  const auto stub = v1::Cluster::NewStub(make_channel(coordinator_address));
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + timeout);
  context.set_wait_for_ready(true);
  v1::StatusReply reply;
  if (const auto status = stub->GetStatus(&context, v1::StatusRequest(), &reply); !status.ok()) {
    return Status(StatusCode::kUnavailable,
                  fmt::format("no coordinator answers at {} ({}); is the cluster running?",
                              coordinator_address, status.error_message()));
  }
  ClusterStatus cluster_status;
  if (auto error = from_proto(reply, &cluster_status); !error.empty()) {
    return Status(StatusCode::kInternal, std::move(error));
  }
  return cluster_status;
}

}  // namespace fastfd::control_plane
