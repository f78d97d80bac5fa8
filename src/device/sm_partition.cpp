#include "fastfd/device/sm_partition.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace fastfd::device {
namespace {

constexpr double kRounding = 1e-6;  // shares such as 1/3 sum to 1 only nearly

// Registers are given to warps in units of 256, and a block's warps are spread over four
// schedulers, each with a quarter of the registers: counting whole sets of four is on the safe
// side.
constexpr std::uint32_t kRegisterUnit = 256;
constexpr std::uint32_t kWarpSet = 4;
constexpr std::uint32_t kWarpThreads = 32;
constexpr std::size_t kSharedUnit = 128;

std::uint64_t round_up(std::uint64_t value, std::uint64_t unit) {
  return (value + unit - 1) / unit * unit;
}

/// What blocks take of an SM, in the units it is given out in.
struct Taken {
  std::uint64_t threads = 0;
  std::uint64_t ctas = 0;
  std::uint64_t registers = 0;
  std::uint64_t shared_bytes = 0;
};

Taken taken_by(const SmLimits& sm, const CtaFootprint& footprint) {
  const std::uint64_t warps = round_up(footprint.num_threads, kWarpThreads) / kWarpThreads;
  const std::uint64_t warp_registers =
      round_up(std::uint64_t{footprint.registers_per_thread} * kWarpThreads, kRegisterUnit);
  Taken taken;
  taken.threads = warps * kWarpThreads;
  taken.ctas = 1;
  taken.registers = round_up(warps, kWarpSet) * warp_registers;
  taken.shared_bytes = round_up(footprint.shared_bytes + sm.reserved_shared_bytes, kSharedUnit);
  return taken;
}

Taken max_of(const Taken& a, const Taken& b) {
  return {std::max(a.threads, b.threads), std::max(a.ctas, b.ctas),
          std::max(a.registers, b.registers), std::max(a.shared_bytes, b.shared_bytes)};
}

/// Most blocks of `each` that fit on an SM beside `beside`.
std::uint64_t count_beside(const SmLimits& sm, const Taken& each, const Taken& beside) {
  const auto room = [](std::uint64_t limit, std::uint64_t used, std::uint64_t unit) {
    return used > limit ? 0 : unit == 0 ? limit : (limit - used) / unit;
  };
  return std::min({room(sm.max_threads, beside.threads, each.threads),
                   room(sm.max_ctas, beside.ctas, each.ctas),
                   room(sm.registers, beside.registers, each.registers),
                   room(sm.shared_bytes, beside.shared_bytes, each.shared_bytes)});
}

}  // namespace

std::vector<SmRange> plan_sm_split(const SmGroups& groups, std::span<const double> shares) {
  std::vector<SmRange> ranges;
  double begin = 0.0;
  for (const double share : shares) {
    if (!(share > 0.0) || share > 1.0) {
      throw DeviceError(fmt::format("sm_share {} is not in (0, 1]", share));
    }
    const double end = begin + share;
    if (end > 1.0 + kRounding) {
      throw DeviceError(
          fmt::format("the sm_share of all servers on this GPU sum to more than 1 ({:.3f} up to "
                      "server {} of {}); lower them",
                      end, ranges.size() + 1, shares.size()));
    }
    const bool is_whole = end > 1.0 - kRounding;
    const auto border = [&](double at) {
      return static_cast<std::uint32_t>(std::lround(at * groups.num_sms() / groups.group_sms));
    };
    SmRange range;
    range.begin_group = std::min(border(begin), groups.num_groups);
    range.end_group = is_whole ? groups.num_groups : std::min(border(end), groups.num_groups);
    range.with_remainder = is_whole;
    if (range.begin_group == range.end_group) {
      throw DeviceError(fmt::format(
          "sm_share {} of {} SMs is less than the smallest group of {}; use at least {:.3f}", share,
          groups.num_sms(), groups.group_sms,
          static_cast<double>(groups.group_sms) / groups.num_sms()));
    }
    ranges.push_back(range);
    begin = end;
  }
  return ranges;
}

std::uint32_t ctas_per_sm(const SmLimits& sm, const CtaFootprint& footprint) {
  return static_cast<std::uint32_t>(count_beside(sm, taken_by(sm, footprint), Taken{}));
}

Status check_residency(const SmLimits& sm, std::uint32_t num_sms,
                       std::span<const WaitingCtas> waiting,
                       std::span<const CtaFootprint> working) {
  Taken largest;
  std::uint64_t num_waiting = 0;
  for (const auto& kernel : waiting) {
    largest = max_of(largest, taken_by(sm, kernel.footprint));
    num_waiting += kernel.num_ctas;
  }
  for (const auto& kernel : working) {
    if (ctas_per_sm(sm, kernel) == 0) {
      return {StatusCode::kInvalidArgument,
              fmt::format("a block of {} ({} threads, {} registers a thread, {} bytes of shared "
                          "memory) does not fit on an SM",
                          kernel.kernel, kernel.num_threads, kernel.registers_per_thread,
                          kernel.shared_bytes)};
    }
    // An SM has no room for a working block from this many waiting ones on; the waiting blocks may
    // lie as badly as they can.
    const std::uint64_t to_block_one = count_beside(sm, largest, taken_by(sm, kernel)) + 1;
    const std::uint64_t num_groups = num_sms / std::max(kernel.cluster_size, 1U);
    if (num_waiting >= to_block_one * num_groups) {
      return {StatusCode::kInvalidArgument,
              fmt::format("{} blocks may wait at once, and {} on each of {} SMs leave no room for "
                          "a block of {} that they may wait for; use fewer lanes, or give the role "
                          "more SMs",
                          num_waiting, to_block_one, num_sms, kernel.kernel)};
    }
  }
  return Status::ok();
}

}  // namespace fastfd::device
