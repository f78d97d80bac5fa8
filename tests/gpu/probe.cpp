#include "tests/gpu/probe.h"

#include <atomic>
#include <chrono>

namespace fastfd::testing {
namespace {

constexpr std::uint64_t kWaitNs = 15'000'000'000;

}  // namespace

Probe::Probe(const device::CudaDevice& gpu)
    : stream_(gpu), state_(gpu, sizeof(layout::AbortState)), words_(gpu, 4096) {
  if (const Status status = clear_state(); !status) {
    throw device::DeviceError(status.message());
  }
}

Status Probe::clear_state() {
  const Status status = device::fill_async(state_.data(), 0, state_.num_bytes(), stream_.handle());
  return status ? stream_.synchronize() : status;
}

WaitLimits Probe::limits() const {
  return {abort_word(), state_.as<layout::AbortState>(), kWaitNs};
}

Status Probe::post(const ProbeChannel& channel, std::uint32_t seed, std::uint64_t value) {
  const Status status = launch_post({channel.payload, channel.num_words, seed, channel.flag, value},
                                    stream_.handle());
  return status ? stream_.synchronize() : status;
}

Result<std::uint32_t> Probe::receive(const ProbeChannel& channel, std::uint32_t seed,
                                     std::uint64_t value) {
  Status status = launch_receive(
      {channel.payload, channel.num_words, seed, channel.flag, value, limits(), num_wrong()},
      stream_.handle());
  if (status) {
    status = stream_.synchronize();
  }
  if (!status) {
    return status;
  }
  return *num_wrong();
}

Status Probe::spin(const std::uint64_t* flag) {
  std::atomic_ref(*started()).store(0);
  if (Status status = launch_wait({started(), flag, 1, limits()}, stream_.handle()); !status) {
    return status;
  }
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  while (std::atomic_ref(*started()).load() == 0) {
    if (std::chrono::steady_clock::now() > end) {
      return {StatusCode::kDeadlineExceeded, "the spinning kernel does not start"};
    }
  }
  return Status::ok();
}

Status Probe::end_spin() {
  std::atomic_ref(*abort_word()).store(1);
  const Status status = stream_.synchronize();
  std::atomic_ref(*abort_word()).store(0);
  return status ? clear_state() : status;
}

}  // namespace fastfd::testing
