#include "cluster/direct_link.h"

namespace fastfd::cluster {

DirectLink::DirectLink(control_plane::ServerHandler& handler, control_plane::MemberEvents& events)
    : handler_(handler), events_(events) {}

void DirectLink::start(control_plane::SessionId session) {
  session_ = session;
  thread_ = std::thread([this] {
    while (auto command = commands_.pop()) {
      (*command)();
    }
  });
}

DirectLink::~DirectLink() { close(); }

void DirectLink::close() {
  connecting_.request_stop();
  commands_.close();
  if (thread_.joinable()) {
    thread_.join();
  }
}

void DirectLink::begin(const control_plane::Topology& topology) {
  commands_.push([this, topology] {
    if (const auto status = handler_.on_topology(topology, connecting_.get_token()); !status) {
      events_.member_failed(session_, status.message());
      return;
    }
    events_.member_ready(session_, topology.epoch);
  });
}

void DirectLink::go(Epoch epoch) { handler_.on_go(epoch); }
void DirectLink::plan(AttentionStepPlan plan) { handler_.on_plan(std::move(plan)); }
void DirectLink::plan(const FfnStepPlan& plan) { handler_.on_plan(FfnStepPlan(plan)); }

void DirectLink::stop(Epoch next_epoch, const std::string& /*reason*/) {
  commands_.push([this, next_epoch] {
    handler_.on_stop(next_epoch);
    events_.stop_acked(session_, next_epoch);
  });
}

void DirectLink::shutdown() {
  commands_.push([this] { handler_.on_shutdown(); });
}

void DirectLink::refuse(const std::string& reason) {
  commands_.push([this, reason] { handler_.on_refused(reason); });
}

}  // namespace fastfd::cluster
