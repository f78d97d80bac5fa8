#include "fastfd/control_plane/control_server.h"

#include <fmt/format.h>
#include <grpcpp/grpcpp.h>
#include <spdlog/spdlog.h>

#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>
#include <type_traits>
#include <utility>

#include "control_plane/address.h"
#include "control_plane/convert.h"
#include "fastfd/v1/cluster.grpc.pb.h"

namespace fastfd::control_plane {
namespace {

using JoinStream = grpc::ServerReaderWriter<v1::CoordinatorMessage, v1::ServerMessage>;

/// How long a peer may take to end its stream after the last message to it.
constexpr std::chrono::seconds kFarewellTimeout{1};

/// Commands to one server: a queue that anybody fills and the stream's writer thread empties.
/// Outlives the stream, since the engine may still hold it.
class StreamLink final : public MemberLink {
 public:
  void begin(const Topology& topology) override { push(topology); }
  void go(Epoch epoch) override { push(Go{epoch}); }
  void plan(AttentionStepPlan plan) override { push(std::move(plan)); }
  void plan(const FfnStepPlan& plan) override { push(plan); }
  void stop(Epoch next_epoch, const std::string& reason) override {
    push(Stop{next_epoch, reason});
  }
  void shutdown() override { push_last(Shutdown{}); }
  void refuse(const std::string& reason) override { push_last(Refused{reason}); }

  /// The stream has ended; wakes the writer.
  void close() {
    {
      const std::lock_guard lock(mutex_);
      closed_ = true;
      queue_.clear();
    }
    changed_.notify_all();
  }

  /// Writes what comes until the stream ends. After a last message the peer has a moment to leave
  /// by itself, so that the message is not cut off by the cancellation.
  void write_to(JoinStream& stream, grpc::ServerContext& context) {
    v1::CoordinatorMessage proto;
    std::deque<CoordinatorMessage> batch;
    while (wait_for_messages(&batch)) {
      bool broken = false;
      for (std::size_t i = 0; i < batch.size() && !broken; ++i) {
        to_proto(batch[i], &proto);
        grpc::WriteOptions options;
        if (i + 1 < batch.size()) {
          options.set_buffer_hint();
        }
        broken = !stream.Write(proto, options);
      }
      batch.clear();
      if (broken) {
        break;
      }
    }
    std::unique_lock lock(mutex_);
    if (!changed_.wait_for(lock, kFarewellTimeout, [this] { return closed_; })) {
      context.TryCancel();
    }
  }

 private:
  void push(CoordinatorMessage message) {
    {
      const std::lock_guard lock(mutex_);
      if (closed_ || last_queued_) {
        return;
      }
      queue_.push_back(std::move(message));
    }
    changed_.notify_all();
  }

  void push_last(CoordinatorMessage message) {
    {
      const std::lock_guard lock(mutex_);
      if (closed_ || last_queued_) {
        return;
      }
      last_queued_ = true;
      queue_.push_back(std::move(message));
    }
    changed_.notify_all();
  }

  /// False when nothing will come any more.
  bool wait_for_messages(std::deque<CoordinatorMessage>* batch) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return closed_ || last_queued_ || !queue_.empty(); });
    batch->swap(queue_);
    return !batch->empty();
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<CoordinatorMessage> queue_;
  bool closed_ = false;
  bool last_queued_ = false;
};

/// Hands one message of a registered server on; empty, or why the stream must end.
std::string dispatch(MemberEvents& events, SessionId session, ServerMessage message) {
  return std::visit(
      [&](auto& value) -> std::string {
        using T = std::decay_t<decltype(value)>;
        if constexpr (std::is_same_v<T, Registration>) {
          return "it registered twice on one stream";
        } else if constexpr (std::is_same_v<T, Ready>) {
          events.member_ready(session, value.epoch);
        } else if constexpr (std::is_same_v<T, StopAck>) {
          events.stop_acked(session, value.next_epoch);
        } else if constexpr (std::is_same_v<T, LaneResult>) {
          events.lane_result(session, std::move(value));
        } else if constexpr (std::is_same_v<T, Heartbeat>) {
          events.heartbeat(session, value);
          if (value.ffn_load) {
            events.ffn_load(session, *value.ffn_load);
          }
        } else {
          static_assert(std::is_same_v<T, Failure>);
          events.member_failed(session, value.message);
        }
        return {};
      },
      message);
}

class ClusterService final : public v1::Cluster::Service {
 public:
  explicit ClusterService(MemberEvents& events) : events_(events) {}

  grpc::Status Join(grpc::ServerContext* context, JoinStream* stream) override {
    v1::ServerMessage proto;
    ServerMessage message;
    if (!stream->Read(&proto)) {
      return grpc::Status::OK;
    }
    if (auto error = from_proto(proto, &message); !error.empty()) {
      return refuse(stream, error);
    }
    const auto* registration = std::get_if<Registration>(&message);
    if (registration == nullptr) {
      return refuse(stream, "the first message of a stream must be a registration");
    }
    const auto link = std::make_shared<StreamLink>();
    const auto session = events_.member_registered(*registration, link);
    if (!session) {
      spdlog::warn("refused {} (pid {}, {}): {}",
                   member_name(registration->role, registration->rank), registration->pid,
                   context->peer(), session.status().message());
      return refuse(stream, session.status().message());
    }
    std::thread writer([&] { link->write_to(*stream, *context); });
    std::string reason = "its stream closed";
    while (stream->Read(&proto)) {
      auto error = from_proto(proto, &message);
      if (error.empty()) {
        error = dispatch(events_, *session, std::move(message));
      }
      if (!error.empty()) {
        reason = "it broke the protocol: " + error;
        link->refuse(reason);
        break;
      }
    }
    events_.member_lost(*session, reason);
    while (stream->Read(&proto)) {  // until the peer has taken the reason, or the writer cancels
    }
    link->close();
    writer.join();
    return grpc::Status::OK;
  }

  grpc::Status GetStatus(grpc::ServerContext* /*context*/, const v1::StatusRequest* /*request*/,
                         v1::StatusReply* reply) override {
    to_proto(events_.cluster_status(), reply);
    return grpc::Status::OK;
  }

 private:
  static grpc::Status refuse(JoinStream* stream, const std::string& reason) {
    v1::CoordinatorMessage proto;
    to_proto(CoordinatorMessage(Refused{reason}), &proto);
    stream->Write(proto);
    return grpc::Status::OK;
  }

  MemberEvents& events_;
};

}  // namespace

class ControlServer::Impl {
 public:
  Impl(const std::string& address, MemberEvents& events) : service_(events) {
    check_can_listen(address);
    grpc::ServerBuilder builder;
    int bound_port = 0;
    builder.AddListeningPort(address, grpc::InsecureServerCredentials(), &bound_port);
    // Without this a second coordinator on the same port would take half of the servers.
    builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
    // A peer whose host is gone, or that is stopped, must not hold a writer for ever.
    builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, 10000);
    builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 5000);
    builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 1000);
    builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_PING_STRIKES, 0);
    builder.SetMaxReceiveMessageSize(kMaxMessageBytes);
    builder.SetMaxSendMessageSize(kMaxMessageBytes);
    builder.RegisterService(&service_);
    server_ = builder.BuildAndStart();
    if (server_ == nullptr || bound_port == 0) {
      throw ControlPlaneError(fmt::format(
          "the control plane can't listen on {}: the port was taken just now; choose another one "
          "in coordinator.control",
          address));
    }
    port_ = static_cast<std::uint16_t>(bound_port);
  }

  ~Impl() { server_->Shutdown(std::chrono::system_clock::now() + kFarewellTimeout); }

  std::uint16_t port() const { return port_; }

 private:
  ClusterService service_;
  std::unique_ptr<grpc::Server> server_;
  std::uint16_t port_ = 0;
};

ControlServer::ControlServer(const std::string& address, MemberEvents& events)
    : impl_(std::make_unique<Impl>(address, events)) {}
ControlServer::~ControlServer() = default;

std::uint16_t ControlServer::port() const { return impl_->port(); }

}  // namespace fastfd::control_plane
