#include "fastfd/device/memory_budget.h"

#include <fmt/format.h>

#include <algorithm>

namespace fastfd::device {
namespace {

constexpr double kGiB = 1024.0 * 1024.0 * 1024.0;

std::string gib(std::uint64_t num_bytes) {
  return fmt::format("{:.2f} GiB", static_cast<double>(num_bytes) / kGiB);
}

}  // namespace

MemoryBudget plan_memory(const DeviceMemory& memory, const MemoryDemand& demand) {
  if (!(demand.fraction > 0.0) || demand.fraction > 1.0) {
    throw DeviceError(fmt::format("gpu_memory_fraction {} is not in (0, 1]", demand.fraction));
  }
  MemoryBudget budget;
  budget.budget_bytes =
      static_cast<std::uint64_t>(demand.fraction * static_cast<double>(memory.total_bytes));
  const std::string share = fmt::format("gpu_memory_fraction {:.3g} x {} = {}", demand.fraction,
                                        gib(memory.total_bytes), gib(budget.budget_bytes));
  if (budget.budget_bytes > memory.free_bytes) {
    const std::uint64_t free_percent =
        memory.free_bytes * 100 / memory.total_bytes;  // rounded down
    throw DeviceError(fmt::format(
        "{}, but only {} are free; end what else runs on this GPU, or use at most {:.2f}", share,
        gib(memory.free_bytes), static_cast<double>(free_percent) / 100.0));
  }
  const bool has_states = demand.states_bytes != 0;
  const std::uint64_t fixed =
      demand.weights_bytes + demand.workspace_bytes + demand.windows_bytes + demand.states_bytes;
  const std::uint64_t least = fixed + demand.min_pages * demand.bytes_per_page;
  const std::string parts =
      fmt::format("weights {} + workspace {} + windows {}{}", gib(demand.weights_bytes),
                  gib(demand.workspace_bytes), gib(demand.windows_bytes),
                  has_states ? " + recurrent state " + gib(demand.states_bytes) : "");
  if (least > budget.budget_bytes) {
    const bool is_fixed = demand.min_pages == demand.max_pages;
    const std::string pages =
        demand.bytes_per_page == 0
            ? ""
            : fmt::format(" + {} KV pages of {} bytes{}", demand.min_pages, demand.bytes_per_page,
                          is_fixed ? "" : " for one sequence");
    throw DeviceError(fmt::format(
        "{} don't hold {}{} = {}; raise gpu_memory_fraction, lower {}{}max_batched_tokens, or "
        "spread the model over more servers",
        share, parts, pages, gib(least), is_fixed ? "kv_cache.pages or " : "max_model_len or ",
        has_states ? "max_sequences or " : ""));
  }
  if (demand.bytes_per_page != 0) {
    budget.num_pages =
        std::min((budget.budget_bytes - fixed) / demand.bytes_per_page, demand.max_pages);
    budget.kv_bytes = budget.num_pages * demand.bytes_per_page;
  }
  budget.arithmetic =
      demand.bytes_per_page == 0
          ? fmt::format("{}: {}", share, parts)
          : fmt::format("{}: {} + KV {} ({} pages of {} bytes)", share, parts, gib(budget.kv_bytes),
                        budget.num_pages, demand.bytes_per_page);
  return budget;
}

}  // namespace fastfd::device
