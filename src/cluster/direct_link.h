#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <stop_token>
#include <thread>

#include "fastfd/control_plane/control_client.h"
#include "fastfd/control_plane/member_link.h"
#include "fastfd/core/blocking_queue.h"

namespace fastfd::cluster {

/// The control plane of a cluster whose servers are threads of one process: commands go to the
/// member's handler without gRPC. What may block (connecting, stopping) runs on a thread of its
/// own; plans are handed over on the engine's thread.
class DirectLink final : public control_plane::MemberLink {
 public:
  /// `handler` and `events` must outlive the link.
  DirectLink(control_plane::ServerHandler& handler, control_plane::MemberEvents& events);
  ~DirectLink() override;

  /// Ends the thread; commands that come later are dropped. Once it has returned, the link calls
  /// neither side any more by itself.
  void close();

  /// The session that member_registered gave. Commands wait for it: what they report names it.
  void start(control_plane::SessionId session);
  control_plane::SessionId session() const { return session_; }

  void begin(const control_plane::Topology& topology) override;
  void go(Epoch epoch) override;
  void plan(AttentionStepPlan plan) override;
  void plan(const FfnStepPlan& plan) override;
  void stop(Epoch next_epoch, const std::string& reason) override;
  void shutdown() override;
  void refuse(const std::string& reason) override;

 private:
  control_plane::ServerHandler& handler_;
  control_plane::MemberEvents& events_;
  std::atomic<control_plane::SessionId> session_{0};
  std::stop_source connecting_;
  BlockingQueue<std::function<void()>> commands_;
  std::thread thread_;
};

}  // namespace fastfd::cluster
