#include "model/tensor_map.h"

#include <fmt/format.h>

#include <algorithm>

namespace fastfd::model {
namespace {

TensorShape bias(std::string name, std::uint64_t dim) {
  return {.name = std::move(name), .dims = {dim}, .kind = TensorKind::kAroundZero};
}

FfnTensors slice_of(const std::string& prefix, const char* const (&names)[3], std::uint64_t hidden,
                    std::uint64_t intermediate, DenseSlice slice) {
  const auto name = [&](int i) { return prefix + names[i] + ".weight"; };
  FfnTensors ffn{.gate = MatrixRef::whole(name(0), intermediate, hidden),
                 .up = MatrixRef::whole(name(1), intermediate, hidden),
                 .down = MatrixRef::whole(name(2), hidden, intermediate)};
  for (MatrixRef* matrix : {&ffn.gate, &ffn.up}) {
    matrix->first_row = slice.begin;
    matrix->num_rows = slice.end - slice.begin;
  }
  ffn.down.first_col = slice.begin;
  ffn.down.num_cols = slice.end - slice.begin;
  return ffn;
}

}  // namespace

MatrixRef MatrixRef::whole(std::string name, std::uint64_t rows, std::uint64_t cols) {
  return {.tensor = {.name = std::move(name), .dims = {rows, cols}},
          .num_rows = rows,
          .num_cols = cols};
}

TensorMap::TensorMap(const ModelSpec& spec, const TensorNames& names, const TensorSource& source)
    : spec_(spec),
      names_(names),
      source_(source),
      decoder_(names.decoder.front()),
      sparse_ffn_(names.sparse_ffn.front()) {
  const auto decoder = std::find_if(
      names.decoder.begin(), names.decoder.end(),
      [&](const std::string& prefix) { return source.contains(prefix + names.embedding); });
  if (decoder != names.decoder.end()) {
    decoder_ = *decoder;
  }
  layers_ = decoder_ + names.layers;
  const auto layer = std::find_if(spec.layers.begin(), spec.layers.end(),
                                  [](const LayerSpec& l) { return l.ffn == FfnKind::kExperts; });
  if (layer == spec.layers.end()) {
    return;
  }
  const auto index = static_cast<std::uint32_t>(layer - spec.layers.begin());
  for (const std::string& prefix : names.sparse_ffn) {
    if (source.contains(in_layer(index, prefix + names.router))) {
      sparse_ffn_ = prefix;
      break;
    }
  }
  stacked_ = source.contains(in_layer(index, sparse_ffn_ + "experts.gate_up_proj"));
}

std::string TensorMap::in_layer(std::uint32_t layer, const std::string& name) const {
  return fmt::format("{}{}.{}", layers_, layer, name);
}

TensorShape TensorMap::norm(std::string name, std::uint64_t dim) const {
  return {.name = std::move(name),
          .dims = {dim},
          .kind = spec_.zero_centered_norms ? TensorKind::kZeroCenteredNorm : TensorKind::kNorm};
}

MatrixRef TensorMap::embedding() const {
  return MatrixRef::whole(decoder_ + names_.embedding, spec_.vocab_size, spec_.hidden_dim);
}

MatrixRef TensorMap::lm_head() const {
  return MatrixRef::whole(names_.lm_head, spec_.vocab_size, spec_.hidden_dim);
}

TensorShape TensorMap::final_norm() const {
  return norm(decoder_ + names_.final_norm, spec_.hidden_dim);
}

TensorShape TensorMap::input_norm(std::uint32_t layer) const {
  return norm(in_layer(layer, names_.input_norm), spec_.hidden_dim);
}

TensorShape TensorMap::post_norm(std::uint32_t layer) const {
  return norm(in_layer(layer, names_.post_norm), spec_.hidden_dim);
}

FullAttentionTensors TensorMap::full_attention(std::uint32_t layer) const {
  const std::string prefix = in_layer(layer, names_.attention);
  const std::uint64_t hidden = spec_.hidden_dim;
  const std::uint64_t q = spec_.q_dim();
  const std::uint64_t kv = spec_.kv_dim();
  const std::uint64_t q_rows = spec_.has_output_gate ? 2 * q : q;
  FullAttentionTensors tensors{.q = MatrixRef::whole(prefix + "q_proj.weight", q_rows, hidden),
                               .k = MatrixRef::whole(prefix + "k_proj.weight", kv, hidden),
                               .v = MatrixRef::whole(prefix + "v_proj.weight", kv, hidden),
                               .out = MatrixRef::whole(prefix + "o_proj.weight", hidden, q)};
  if (spec_.qkv_bias) {
    tensors.q_bias = bias(prefix + "q_proj.bias", q);
    tensors.k_bias = bias(prefix + "k_proj.bias", kv);
    tensors.v_bias = bias(prefix + "v_proj.bias", kv);
  }
  for (std::uint64_t head = 0; spec_.has_output_gate && head < spec_.num_q_heads; ++head) {
    MatrixRef rows = tensors.q;
    rows.num_rows = spec_.head_dim;
    rows.first_row = 2 * head * spec_.head_dim;
    tensors.q_heads.push_back(rows);
    rows.first_row += spec_.head_dim;
    tensors.gate_heads.push_back(rows);
  }
  if (spec_.out_bias) {
    tensors.out_bias = bias(prefix + "o_proj.bias", hidden);
  }
  if (spec_.has_sinks) {
    tensors.sinks = bias(prefix + "sinks", spec_.num_q_heads);
  }
  if (spec_.qk_norm != kernels::QkNorm::kNone) {
    const bool whole = spec_.qk_norm == kernels::QkNorm::kWhole;
    tensors.q_norm = norm(prefix + "q_norm.weight", whole ? q : spec_.head_dim);
    tensors.k_norm = norm(prefix + "k_norm.weight", whole ? kv : spec_.head_dim);
  }
  return tensors;
}

LatentAttentionTensors TensorMap::latent_attention(std::uint32_t layer) const {
  const std::string prefix = in_layer(layer, names_.attention);
  const LatentSpec& latent = spec_.latent;
  const std::uint64_t heads = latent.num_heads;
  const std::uint64_t hidden = spec_.hidden_dim;
  LatentAttentionTensors tensors{
      .q = MatrixRef::whole(prefix + "q_proj.weight", heads * latent.query_dim(), hidden),
      .kv = MatrixRef::whole(prefix + "kv_a_proj_with_mqa.weight", latent.row_dim(), hidden),
      .kv_norm = norm(prefix + "kv_a_layernorm.weight", latent.kv_rank),
      .kv_up = MatrixRef::whole(prefix + "kv_b_proj.weight",
                                heads * (latent.nope_dim + latent.value_dim), latent.kv_rank),
      .out = MatrixRef::whole(prefix + "o_proj.weight", hidden, heads * latent.value_dim)};
  if (latent.q_rank != 0) {
    tensors.q_down = MatrixRef::whole(prefix + "q_a_proj.weight", latent.q_rank, hidden);
    tensors.q_norm = norm(prefix + "q_a_layernorm.weight", latent.q_rank);
    tensors.q =
        MatrixRef::whole(prefix + "q_b_proj.weight", heads * latent.query_dim(), latent.q_rank);
  }
  return tensors;
}

/// Qwen3.5: a tensor for each kind of row, in the order of the fused projection.
void TensorMap::place_separate(const std::string& prefix, std::vector<PlacedMatrix>& in) const {
  const auto& shape = spec_.gated_delta_net;
  std::uint64_t first_row = 0;
  for (const auto& [name, num_rows] : {std::pair{"in_proj_qkv.weight", shape.conv_dim()},
                                       std::pair{"in_proj_z.weight", shape.value_dim()},
                                       std::pair{"in_proj_b.weight", shape.num_v_heads},
                                       std::pair{"in_proj_a.weight", shape.num_v_heads}}) {
    const auto rows = static_cast<std::uint64_t>(num_rows);
    in.push_back({MatrixRef::whole(prefix + name, rows, spec_.hidden_dim), first_row});
    first_row += rows;
  }
}

/// Qwen3-Next: for every k head its rows of q, k, v and z, and in a second tensor of b and a.
void TensorMap::place_by_k_head(const std::string& prefix, std::vector<PlacedMatrix>& in) const {
  const auto& shape = spec_.gated_delta_net;
  const auto unsigned_dim = [](std::int64_t dim) { return static_cast<std::uint64_t>(dim); };
  const std::uint64_t heads = unsigned_dim(shape.num_k_heads);
  const std::uint64_t k_rows = unsigned_dim(shape.k_head_dim);
  const std::uint64_t v_rows = unsigned_dim(shape.value_dim()) / heads;
  const std::uint64_t gates = unsigned_dim(shape.num_v_heads) / heads;
  const std::uint64_t values = 2 * heads * k_rows;
  const std::uint64_t z = unsigned_dim(shape.conv_dim());
  const std::uint64_t b = z + unsigned_dim(shape.value_dim());
  const auto place = [&](MatrixRef tensor, std::uint64_t head,
                         std::initializer_list<std::pair<std::uint64_t, std::uint64_t>> parts) {
    tensor.first_row = head * (tensor.num_rows / heads);
    for (const auto& [base, num_rows] : parts) {
      tensor.num_rows = num_rows;
      in.push_back({tensor, base + head * num_rows});
      tensor.first_row += num_rows;
    }
  };
  const auto qkvz = MatrixRef::whole(prefix + "in_proj_qkvz.weight", 2 * heads * (k_rows + v_rows),
                                     spec_.hidden_dim);
  const auto ba =
      MatrixRef::whole(prefix + "in_proj_ba.weight", 2 * heads * gates, spec_.hidden_dim);
  for (std::uint64_t head = 0; head < heads; ++head) {
    place(qkvz, head, {{0, k_rows}, {heads * k_rows, k_rows}, {values, v_rows}, {z, v_rows}});
    place(ba, head, {{b, gates}, {b + heads * gates, gates}});
  }
}

GatedDeltaNetTensors TensorMap::gated_delta_net(std::uint32_t layer) const {
  const std::string prefix = in_layer(layer, names_.gated_delta_net);
  const auto& shape = spec_.gated_delta_net;
  const auto unsigned_dim = [](std::int64_t dim) { return static_cast<std::uint64_t>(dim); };
  const std::uint64_t num_heads = unsigned_dim(shape.num_v_heads);
  GatedDeltaNetTensors tensors{
      .in = {},
      .conv = {.name = prefix + "conv1d.weight",
               .dims = {unsigned_dim(shape.conv_dim()), 1, unsigned_dim(shape.conv_kernel)}},
      .a_log = bias(prefix + "A_log", num_heads),
      .dt_bias = bias(prefix + "dt_bias", num_heads),
      .norm = {.name = prefix + "norm.weight",
               .dims = {unsigned_dim(shape.v_head_dim)},
               .kind = TensorKind::kNorm},
      .out = MatrixRef::whole(prefix + "out_proj.weight", spec_.hidden_dim,
                              unsigned_dim(shape.value_dim()))};
  if (source_.contains(prefix + "in_proj_qkvz.weight")) {
    place_by_k_head(prefix, tensors.in);
  } else {
    place_separate(prefix, tensors.in);
  }
  return tensors;
}

MatrixRef TensorMap::router(std::uint32_t layer) const {
  return MatrixRef::whole(in_layer(layer, sparse_ffn_ + names_.router), spec_.num_experts,
                          spec_.hidden_dim);
}

std::optional<TensorShape> TensorMap::correction_bias(std::uint32_t layer) const {
  if (!spec_.has_correction_bias) {
    return std::nullopt;
  }
  return bias(in_layer(layer, sparse_ffn_ + names_.correction_bias), spec_.num_experts);
}

std::optional<TensorShape> TensorMap::router_bias(std::uint32_t layer) const {
  if (!spec_.has_router_bias) {
    return std::nullopt;
  }
  return bias(in_layer(layer, sparse_ffn_ + names_.router_bias), spec_.num_experts);
}

FfnTensors TensorMap::expert(std::uint32_t layer, std::uint32_t expert) const {
  if (names_.interleaved_experts) {
    FfnTensors ffn = interleaved_expert(layer, expert);
    if (spec_.has_expert_biases) {
      add_expert_biases(layer, expert, ffn);
    }
    return ffn;
  }
  if (stacked_) {
    return stacked_expert(layer, expert);
  }
  const char* const kNames[3] = {names_.expert_gate.c_str(), names_.expert_up.c_str(),
                                 names_.expert_down.c_str()};
  return slice_of(in_layer(layer, fmt::format("{}experts.{}.", sparse_ffn_, expert)), kNames,
                  spec_.hidden_dim, spec_.expert_intermediate_dim,
                  {0, spec_.expert_intermediate_dim});
}

FfnTensors TensorMap::stacked_expert(std::uint32_t layer, std::uint32_t expert) const {
  const std::string prefix = in_layer(layer, sparse_ffn_ + "experts.");
  const std::uint64_t hidden = spec_.hidden_dim;
  const std::uint64_t intermediate = spec_.expert_intermediate_dim;
  const MatrixRef gate{.tensor = {.name = prefix + "gate_up_proj",
                                  .dims = {spec_.num_experts, 2 * intermediate, hidden}},
                       .first_row = expert * 2 * intermediate,
                       .num_rows = intermediate,
                       .num_cols = hidden};
  MatrixRef up = gate;
  up.first_row += intermediate;
  return {.gate = gate,
          .up = up,
          .down = {.tensor = {.name = prefix + "down_proj",
                              .dims = {spec_.num_experts, hidden, intermediate}},
                   .first_row = expert * hidden,
                   .num_rows = hidden,
                   .num_cols = intermediate}};
}

FfnTensors TensorMap::interleaved_expert(std::uint32_t layer, std::uint32_t expert) const {
  const std::string prefix = in_layer(layer, sparse_ffn_ + "experts.");
  const std::uint64_t hidden = spec_.hidden_dim;
  const std::uint64_t intermediate = spec_.expert_intermediate_dim;
  // The files decide for every tensor; what is made up lies as the groups want it.
  const auto matrix_of = [&](const std::string& name, std::uint64_t rows, std::uint64_t cols) {
    MatrixRef matrix;
    matrix.tensor.name = prefix + name;
    matrix.is_transposed = source_.contains(matrix.tensor.name) &&
                           !source_.contains(matrix.tensor.name + std::string(kMxfp4Blocks));
    if (matrix.is_transposed) {
      std::swap(rows, cols);
    }
    matrix.tensor.dims = {spec_.num_experts, rows, cols};
    matrix.first_row = expert * rows;
    matrix.num_rows = rows;
    matrix.num_cols = cols;
    return matrix;
  };
  FfnTensors ffn{.gate = matrix_of("gate_up_proj", 2 * intermediate, hidden),
                 .up = {},
                 .down = matrix_of("down_proj", hidden, intermediate)};
  if (ffn.gate.is_transposed) {
    ffn.gate.num_cols = intermediate;
    ffn.gate.col_step = 2;
    ffn.up = ffn.gate;
    ffn.up.first_col = 1;
  } else {
    ffn.gate.num_rows = intermediate;
    ffn.gate.row_step = 2;
    ffn.up = ffn.gate;
    ++ffn.up.first_row;
  }
  return ffn;
}

void TensorMap::add_expert_biases(std::uint32_t layer, std::uint32_t expert,
                                  FfnTensors& ffn) const {
  const std::string prefix = in_layer(layer, sparse_ffn_ + "experts.");
  const auto row_of = [&](const std::string& name, std::uint64_t cols) {
    MatrixRef row = MatrixRef::whole(prefix + name, spec_.num_experts, cols);
    row.first_row = expert;
    row.num_rows = 1;
    return row;
  };
  ffn.gate_bias = row_of("gate_up_proj_bias", std::uint64_t{2} * spec_.expert_intermediate_dim);
  ffn.gate_bias->num_cols = spec_.expert_intermediate_dim;
  ffn.gate_bias->col_step = 2;
  ffn.up_bias = ffn.gate_bias;
  ffn.up_bias->first_col = 1;
  ffn.down_bias = row_of("down_proj_bias", spec_.hidden_dim);
}

FfnTensors TensorMap::shared_expert(std::uint32_t layer) const {
  return slice_of(in_layer(layer, sparse_ffn_ + names_.shared_expert),
                  {"gate_proj", "up_proj", "down_proj"}, spec_.hidden_dim,
                  spec_.shared_intermediate_dim, {0, spec_.shared_intermediate_dim});
}

std::optional<MatrixRef> TensorMap::shared_gate(std::uint32_t layer) const {
  if (!spec_.has_shared_gate) {
    return std::nullopt;
  }
  return MatrixRef::whole(in_layer(layer, sparse_ffn_ + names_.shared_gate), 1, spec_.hidden_dim);
}

FfnTensors TensorMap::dense_ffn(std::uint32_t layer, DenseSlice slice) const {
  return slice_of(in_layer(layer, names_.dense_ffn), {"gate_proj", "up_proj", "down_proj"},
                  spec_.hidden_dim, spec_.dense_intermediate_dim, slice);
}

void TensorMap::for_each(const std::function<void(const TensorShape&)>& visit) const {
  visit(embedding().tensor);
  visit(final_norm());
  if (!spec_.tied_embeddings) {
    visit(lm_head().tensor);
  }
  for (std::uint32_t layer = 0; layer < spec_.num_layers; ++layer) {
    visit_layer(layer, visit);
  }
}

namespace {

void visit_if(const std::optional<TensorShape>& tensor,
              const std::function<void(const TensorShape&)>& visit) {
  if (tensor) {
    visit(*tensor);
  }
}

}  // namespace

void TensorMap::visit_attention(std::uint32_t layer, const Visit& visit) const {
  if (spec_.layers[layer].attention == AttentionKind::kGatedDeltaNet) {
    const GatedDeltaNetTensors tensors = gated_delta_net(layer);
    for (const PlacedMatrix& placed : tensors.in) {
      visit(placed.matrix.tensor);
    }
    for (const TensorShape* tensor :
         {&tensors.conv, &tensors.a_log, &tensors.dt_bias, &tensors.norm, &tensors.out.tensor}) {
      visit(*tensor);
    }
    return;
  }
  if (spec_.layers[layer].attention == AttentionKind::kLatent) {
    const LatentAttentionTensors latent = latent_attention(layer);
    if (latent.q_down) {
      visit(latent.q_down->tensor);
    }
    visit_if(latent.q_norm, visit);
    for (const MatrixRef* matrix : {&latent.q, &latent.kv, &latent.kv_up, &latent.out}) {
      visit(matrix->tensor);
    }
    visit(latent.kv_norm);
    return;
  }
  const FullAttentionTensors attention = full_attention(layer);
  for (const MatrixRef* matrix : {&attention.q, &attention.k, &attention.v, &attention.out}) {
    visit(matrix->tensor);
  }
  for (const auto* tensor :
       {&attention.q_bias, &attention.k_bias, &attention.v_bias, &attention.out_bias,
        &attention.q_norm, &attention.k_norm, &attention.sinks}) {
    visit_if(*tensor, visit);
  }
}

void TensorMap::visit_layer(std::uint32_t layer, const Visit& visit) const {
  const auto visit_ffn = [&](const FfnTensors& ffn) {
    visit(ffn.gate.tensor);
    visit(ffn.up.tensor);
    visit(ffn.down.tensor);
    for (const auto* row : {&ffn.gate_bias, &ffn.down_bias}) {
      if (*row) {
        visit((*row)->tensor);
      }
    }
  };
  visit(input_norm(layer));
  visit(post_norm(layer));
  visit_attention(layer, visit);
  if (spec_.layers[layer].ffn == FfnKind::kDense) {
    visit_ffn(dense_ffn(layer, {0, spec_.dense_intermediate_dim}));
    return;
  }
  visit(router(layer).tensor);
  visit_if(correction_bias(layer), visit);
  visit_if(router_bias(layer), visit);
  for (std::uint32_t id = 0; id < spec_.num_experts; ++id) {
    visit_ffn(expert(layer, id));
  }
  if (spec_.shared_intermediate_dim != 0) {
    visit_ffn(shared_expert(layer));
    if (const auto gate = shared_gate(layer)) {
      visit(gate->tensor);
    }
  }
}

}  // namespace fastfd::model
