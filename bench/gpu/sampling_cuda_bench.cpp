/// The sampler with the vocabulary of Qwen3 and 64 samples: medians of graph replays beside the
/// time that reading the logits once takes.

#include <cstdint>

#include "bench_data.h"
#include "kernels/sampling/op_cuda.h"

namespace fastfd::bench {
namespace {

constexpr std::int64_t kVocab = 151936;

/// Peaked: logits like a trained model's, some tokens far above the rest; else normal ones.
void sampling(const std::string& what, const kernels::cuda::SlotSampling& params, bool is_peaked) {
  constexpr std::int64_t kSamples = 64;
  constexpr int kSets = 4;  // 39 MB each: together more than the cache
  auto logits = normals(static_cast<std::size_t>(kSamples * kVocab), 2.0F);
  for (std::size_t i = 0; is_peaked && i < logits.size(); i += 2011) {
    logits[i] += 14.0F;
  }
  std::vector<layout::LaneSample> samples(kSamples);
  for (std::uint32_t i = 0; i < kSamples; ++i) {
    samples[i] = {.row = i, .slot = i, .position = i};
  }
  layout::LaneControl control;
  control.num_samples = kSamples;
  DeviceBuffer<layout::LaneControl> device_control(std::vector{control});
  DeviceBuffer<layout::AbortState> abort(std::vector{layout::AbortState{}});
  DeviceBuffer<layout::LaneSample> device_samples(samples);
  DeviceBuffer<float> device_logits(logits.size() * kSets);
  device_logits.repeat(logits);
  DeviceBuffer<float> adjusted(logits.size());
  std::vector slots(kSamples, params);
  for (std::int32_t i = 0; params.counts_row >= 0 && i < kSamples; ++i) {
    slots[static_cast<std::size_t>(i)].counts_row = i;
  }
  DeviceBuffer<kernels::cuda::SlotSampling> device_slots(slots);
  DeviceBuffer<std::uint32_t> counts(std::vector<std::uint32_t>(logits.size()));
  DeviceBuffer<TokenId> last_tokens(kSamples);
  DeviceBuffer<kernels::cuda::SampledRow> results(kSamples);
  const double us = median_microseconds(kSets, [&](int i, cudaStream_t stream) {
    require(kernels::cuda::launch_sampling(
        {.max_samples = kSamples,
         .vocab_size = kVocab,
         .control = device_control.data(),
         .abort = abort.data(),
         .samples = device_samples.data(),
         .logits = device_logits.data() + static_cast<std::size_t>(i) * logits.size(),
         .adjusted = adjusted.data(),
         .slots = device_slots.data(),
         .token_counts = counts.data(),
         .last_tokens = last_tokens.data(),
         .results = results.data()},
        stream));
  });
  print("sampling 64 of 151936, " + what, us,
        floor_microseconds(static_cast<double>(logits.size()) * 4, 0.0, kBf16FlopsPerSecond));
}

void run() {
  sampling("greedy", {.temperature = 0.0F}, true);
  sampling("greedy, 20 log-probabilities", {.temperature = 0.0F, .num_logprobs = 20}, true);
  sampling("temperature", {.temperature = 1.0F}, true);
  sampling("top_p 0.95", {.temperature = 1.0F, .top_p = 0.95F}, true);
  sampling("top_k 20, top_p 0.95", {.temperature = 0.6F, .top_p = 0.95F, .top_k = 20}, true);
  sampling("min_p 0.05", {.temperature = 1.0F, .min_p = 0.05F}, true);
  sampling("penalties", {.presence_penalty = 1.0F, .counts_row = 0}, true);
  sampling("top_p 0.95 of flat logits", {.temperature = 1.0F, .top_p = 0.95F}, false);
}

}  // namespace
}  // namespace fastfd::bench

int main() {
  fastfd::bench::run();
  return 0;
}
