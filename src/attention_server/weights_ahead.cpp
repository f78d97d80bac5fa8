#include "attention_server/weights_ahead.h"

namespace fastfd::attention_server {
namespace {

void add(device::MemoryRanges& ranges, const kernels::PackedWeights& weights) {
  ranges.push_back(weights.bytes());
}

// In the order of attention's operators; what a layer does not have is empty.
device::MemoryRanges matrices_of(const model::AttentionLayerWeights& layer) {
  device::MemoryRanges ranges;
  add(ranges, layer.full.qkv);
  add(ranges, layer.full.gate);
  add(ranges, layer.full.out);
  add(ranges, layer.latent.q_down);
  add(ranges, layer.latent.q);
  add(ranges, layer.latent.kv);
  for (const auto& keys : layer.latent.keys) {
    add(ranges, keys);
  }
  for (const auto& values : layer.latent.values) {
    add(ranges, values);
  }
  add(ranges, layer.latent.out);
  add(ranges, layer.gated_delta_net.in);
  add(ranges, layer.gated_delta_net.out);
  add(ranges, layer.router.weights);
  return ranges;
}

}  // namespace

std::vector<device::MemoryRanges> weights_by_layer(const model::AttentionWeights& weights) {
  const std::size_t max_bytes = device::cache_fetch_bytes();
  std::vector<device::MemoryRanges> by_layer;
  for (const auto& layer : weights.layers) {
    by_layer.push_back(device::first_bytes(matrices_of(layer), max_bytes));
  }
  by_layer.push_back(device::first_bytes({weights.lm_head.bytes()}, max_bytes));
  return by_layer;
}

}  // namespace fastfd::attention_server
