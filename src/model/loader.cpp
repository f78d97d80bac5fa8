#include "model/loader.h"

#include <algorithm>

#include "model/weight_reader.h"

namespace fastfd::model {
namespace {

std::int64_t signed_dim(std::uint64_t dim) { return static_cast<std::int64_t>(dim); }

/// Reads and packs the FFNs of one role, one after the other.
class FfnPacker {
 public:
  FfnPacker(WeightReader& reader, std::uint32_t hidden_dim, device::HostArena& arena)
      : reader_(reader), hidden_dim_(hidden_dim), arena_(arena) {}

  /// `width`: hidden units with the zeros behind.
  kernels::ExpertWeights pack(const FfnTensors& tensors, std::uint32_t width) {
    reader_.read_matrix(tensors.gate, gate_);
    reader_.read_matrix(tensors.up, up_);
    reader_.read_matrix(tensors.down, down_);
    const auto units = static_cast<std::uint32_t>(gate_.size() / hidden_dim_);
    if (units != width) {
      gate_.resize(std::size_t{width} * hidden_dim_, bf16{0});
      up_.resize(std::size_t{width} * hidden_dim_, bf16{0});
      widen_down(units, width);
    }
    auto weights =
        kernels::ExpertWeights::pack(gate_.data(), up_.data(), down_.data(),
                                     signed_dim(hidden_dim_), signed_dim(width), &arena_);
    if (tensors.gate_bias) {
      weights.set_biases(reader_.read_row(*tensors.gate_bias), reader_.read_row(*tensors.up_bias),
                         reader_.read_row(*tensors.down_bias));
    }
    return weights;
  }

 private:
  void widen_down(std::uint32_t units, std::uint32_t width) {
    std::vector<bf16> wide(std::size_t{width} * hidden_dim_, bf16{0});
    for (std::size_t row = 0; row < hidden_dim_; ++row) {
      std::copy_n(down_.data() + row * units, units, wide.data() + row * width);
    }
    down_ = std::move(wide);
  }

  WeightReader& reader_;
  std::uint32_t hidden_dim_;
  device::HostArena& arena_;
  std::vector<bf16> gate_, up_, down_;
};

void pack_one_after_the_other(WeightReader& reader, const std::vector<MatrixRef>& matrices,
                              kernels::PackedWeights& packed) {
  std::uint64_t first_row = 0;
  for (const MatrixRef& matrix : matrices) {
    reader.pack(matrix, packed, first_row);
    first_row += matrix.num_rows;
  }
}

FullAttentionWeights load_full_attention(WeightReader& reader, const ModelSpec& spec,
                                         const FullAttentionTensors& tensors,
                                         device::HostArena& arena) {
  const std::uint64_t q = spec.q_dim();
  const std::uint64_t kv = spec.kv_dim();
  FullAttentionWeights weights;
  weights.qkv = kernels::PackedWeights(signed_dim(q + 2 * kv), spec.hidden_dim, &arena);
  if (spec.has_output_gate) {
    weights.gate = kernels::PackedWeights(signed_dim(q), spec.hidden_dim, &arena);
    pack_one_after_the_other(reader, tensors.q_heads, weights.qkv);
    pack_one_after_the_other(reader, tensors.gate_heads, weights.gate);
  } else {
    reader.pack(tensors.q, weights.qkv);
  }
  reader.pack(tensors.k, weights.qkv, q);
  reader.pack(tensors.v, weights.qkv, q + kv);
  for (const auto* bias : {&tensors.q_bias, &tensors.k_bias, &tensors.v_bias}) {
    const auto values = reader.read_vector(*bias);
    weights.qkv_bias.insert(weights.qkv_bias.end(), values.begin(), values.end());
  }
  weights.q_norm = reader.read_vector(tensors.q_norm);
  weights.k_norm = reader.read_vector(tensors.k_norm);
  weights.out = kernels::PackedWeights(spec.hidden_dim, signed_dim(q), &arena);
  reader.pack(tensors.out, weights.out);
  weights.out_bias = reader.read_vector(tensors.out_bias);
  weights.sinks = reader.read_vector(tensors.sinks);
  return weights;
}

void load_heads(WeightReader& reader, const LatentSpec& latent, const MatrixRef& kv_up,
                LatentAttentionWeights& weights, device::HostArena& arena) {
  const std::int64_t rank = latent.kv_rank;
  std::vector<bf16> keys(std::size_t{latent.kv_rank} * latent.nope_dim);
  std::vector<bf16> values(std::size_t{latent.value_dim} * latent.kv_rank);
  reader.open(kv_up);
  for (std::uint32_t i = 0; i < latent.num_heads; ++i) {
    reader.read_head(kv_up, latent, i, keys.data(), values.data());
    weights.keys.emplace_back(rank, latent.nope_dim, &arena);
    weights.keys.back().pack_rows(0, rank, keys.data());
    weights.values.emplace_back(latent.value_dim, rank, &arena);
    weights.values.back().pack_rows(0, latent.value_dim, values.data());
  }
}

LatentAttentionWeights load_latent_attention(WeightReader& reader, const ModelSpec& spec,
                                             const LatentAttentionTensors& tensors,
                                             device::HostArena& arena) {
  const auto pack = [&](const MatrixRef& matrix) {
    kernels::PackedWeights packed(signed_dim(matrix.num_rows), signed_dim(matrix.num_cols), &arena);
    reader.pack(matrix, packed);
    return packed;
  };
  LatentAttentionWeights weights;
  if (tensors.q_down) {
    weights.q_down = pack(*tensors.q_down);
  }
  weights.q_norm = reader.read_vector(tensors.q_norm);
  weights.q = pack(tensors.q);
  weights.kv = pack(tensors.kv);
  weights.kv_norm = reader.read_vector(tensors.kv_norm);
  load_heads(reader, spec.latent, tensors.kv_up, weights, arena);
  weights.out = pack(tensors.out);
  return weights;
}

GatedDeltaNetWeights load_gated_delta_net(WeightReader& reader, const ModelSpec& spec,
                                          const GatedDeltaNetTensors& tensors,
                                          device::HostArena& arena) {
  const auto& shape = spec.gated_delta_net;
  GatedDeltaNetWeights weights;
  weights.in = kernels::PackedWeights(shape.row_dim(), spec.hidden_dim, &arena);
  for (const PlacedMatrix& placed : tensors.in) {
    reader.pack(placed.matrix, weights.in, placed.first_row);
  }
  weights.conv = reader.read_by_tap(tensors.conv);
  weights.a_log = reader.read_vector(tensors.a_log);
  weights.dt_bias = reader.read_vector(tensors.dt_bias);
  weights.norm = reader.read_vector(tensors.norm);
  weights.out = kernels::PackedWeights(spec.hidden_dim, shape.value_dim(), &arena);
  reader.pack(tensors.out, weights.out);
  return weights;
}

AttentionLayerWeights load_layer(WeightReader& reader, const ModelSpec& spec,
                                 const TensorMap& tensors, std::uint32_t layer,
                                 device::HostArena& arena) {
  AttentionLayerWeights weights;
  weights.input_norm = reader.read_vector(tensors.input_norm(layer));
  switch (spec.layers[layer].attention) {
    case AttentionKind::kFull:
      weights.full = load_full_attention(reader, spec, tensors.full_attention(layer), arena);
      break;
    case AttentionKind::kLatent:
      weights.latent = load_latent_attention(reader, spec, tensors.latent_attention(layer), arena);
      break;
    case AttentionKind::kGatedDeltaNet:
      weights.gated_delta_net =
          load_gated_delta_net(reader, spec, tensors.gated_delta_net(layer), arena);
      break;
  }
  weights.post_norm = reader.read_vector(tensors.post_norm(layer));
  if (spec.layers[layer].ffn == FfnKind::kDense) {
    return weights;
  }
  weights.router.weights = kernels::PackedWeights(spec.num_experts, spec.hidden_dim, &arena);
  reader.pack(tensors.router(layer), weights.router.weights);
  weights.router.correction_bias = reader.read_vector(tensors.correction_bias(layer));
  weights.router.bias = reader.read_vector(tensors.router_bias(layer));
  if (spec.shared_intermediate_dim != 0) {
    weights.shared.expert = FfnPacker(reader, spec.hidden_dim, arena)
                                .pack(tensors.shared_expert(layer), spec.shared_intermediate_dim);
    if (const auto gate = tensors.shared_gate(layer)) {
      weights.shared.gate = kernels::PackedWeights(1, spec.hidden_dim, &arena);
      reader.pack(*gate, weights.shared.gate);
    }
  }
  return weights;
}

}  // namespace

FfnShare FfnShare::of(const ExpertPlacement& placement, ServerRank ffn_rank) {
  const ExpertPlacement slices = placement.dense_slices();
  return {.experts = placement.experts_of(ffn_rank),
          .slices = slices.experts_of(ffn_rank),
          .num_slices = slices.num_experts()};
}

std::uint32_t FfnShare::slice_width(std::uint32_t intermediate_dim) const {
  std::uint32_t width = 0;
  for (std::uint32_t i = 0; i < num_slices; ++i) {
    const DenseSlice slice = dense_slice(intermediate_dim, num_slices, i);
    width = std::max(width, slice.end - slice.begin);
  }
  return width;
}

AttentionWeights load_attention(const TensorSource& source, const ModelSpec& spec,
                                const TensorMap& tensors, LoadReport* report) {
  WeightReader reader(source, report);
  device::HostArena arena;
  AttentionWeights weights;
  weights.lm_head = kernels::PackedWeights(spec.vocab_size, spec.hidden_dim, &arena);
  reader.pack(spec.tied_embeddings ? tensors.embedding() : tensors.lm_head(), weights.lm_head);
  if (!spec.tied_embeddings) {
    reader.read_matrix(tensors.embedding(), weights.embedding);
  }
  weights.final_norm = reader.read_vector(tensors.final_norm());
  for (std::uint32_t layer = 0; layer < spec.num_layers; ++layer) {
    weights.layers.push_back(load_layer(reader, spec, tensors, layer, arena));
  }
  return weights;
}

FfnWeights load_ffn(const TensorSource& source, const ModelSpec& spec, const TensorMap& tensors,
                    const FfnShare& share, LoadReport* report) {
  WeightReader reader(source, report);
  device::HostArena arena;
  FfnPacker packer(reader, spec.hidden_dim, arena);
  FfnWeights weights;
  weights.layers.resize(spec.num_layers);
  for (std::uint32_t layer = 0; layer < spec.num_layers; ++layer) {
    FfnLayerWeights& to = weights.layers[layer];
    if (spec.layers[layer].ffn == FfnKind::kExperts) {
      to.intermediate_dim = spec.expert_intermediate_dim;
      to.activation = spec.expert_activation;
      for (const std::uint32_t id : share.experts) {
        to.experts.push_back(packer.pack(tensors.expert(layer, id), to.intermediate_dim));
      }
      continue;
    }
    to.intermediate_dim = share.slice_width(spec.dense_intermediate_dim);
    for (const std::uint32_t id : share.slices) {
      const auto slice = dense_slice(spec.dense_intermediate_dim, share.num_slices, id);
      to.experts.push_back(packer.pack(tensors.dense_ffn(layer, slice), to.intermediate_dim));
    }
  }
  return weights;
}

}  // namespace fastfd::model
