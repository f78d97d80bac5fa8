#pragma once

/// Which tensors a model is made of, where they are in its checkpoint, in which shape.

#include <functional>
#include <optional>
#include <string>

#include "fastfd/model/model_spec.h"
#include "model/tensor_names.h"
#include "model/tensor_source.h"

namespace fastfd::model {

/// A block of a tensor whose leading dimensions are taken together as rows.
struct MatrixRef {
  TensorShape tensor;
  std::uint64_t first_row = 0;
  std::uint64_t num_rows = 0;
  std::uint64_t first_col = 0;
  std::uint64_t num_cols = 0;

  /// Every so-manieth row and column: num_rows and num_cols count those.
  std::uint64_t row_step = 1;
  std::uint64_t col_step = 1;
  /// The matrix that is meant is the transpose of this block.
  bool is_transposed = false;

  std::uint64_t tensor_cols() const { return tensor.dims.back(); }
  bool has_gaps() const { return row_step != 1 || col_step != 1; }
  bool is_whole() const {
    return tensor.dims.size() == 2 && num_rows == tensor.dims[0] && num_cols == tensor.dims[1] &&
           !has_gaps() && !is_transposed;
  }
  static MatrixRef whole(std::string name, std::uint64_t rows, std::uint64_t cols);
};

struct FullAttentionTensors {
  MatrixRef q, k, v, out;
  std::optional<TensorShape> q_bias{}, k_bias{}, v_bias{}, out_bias{};
  std::optional<TensorShape> q_norm{}, k_norm{};
  std::optional<TensorShape> sinks{};
  /// With an output gate, q is the tensor that holds for every head its rows of q, then those of
  /// the gate: these.
  std::vector<MatrixRef> q_heads{}, gate_heads{};
};

/// A matrix that becomes rows first_row .. of a fused one.
struct PlacedMatrix {
  MatrixRef matrix;
  std::uint64_t first_row = 0;
};

struct GatedDeltaNetTensors {
  std::vector<PlacedMatrix> in;  ///< of kernels::GatedDeltaNetShape's row
  TensorShape conv, a_log, dt_bias, norm;
  MatrixRef out;
};

struct LatentAttentionTensors {
  std::optional<MatrixRef> q_down{};
  std::optional<TensorShape> q_norm{};
  MatrixRef q, kv;
  TensorShape kv_norm;
  MatrixRef kv_up, out;
};

/// down(activation(gate(x), up(x)))
struct FfnTensors {
  MatrixRef gate, up, down;
  std::optional<MatrixRef> gate_bias{}, up_bias{}, down_bias{};  ///< one row each; all or none
};

class TensorMap {
 public:
  /// All are used, none is kept by value.
  TensorMap(const ModelSpec& spec, const TensorNames& names, const TensorSource& source);

  MatrixRef embedding() const;
  MatrixRef lm_head() const;  ///< not of a model whose embeddings are tied
  TensorShape final_norm() const;

  TensorShape input_norm(std::uint32_t layer) const;
  TensorShape post_norm(std::uint32_t layer) const;
  FullAttentionTensors full_attention(std::uint32_t layer) const;
  LatentAttentionTensors latent_attention(std::uint32_t layer) const;
  GatedDeltaNetTensors gated_delta_net(std::uint32_t layer) const;

  // FfnKind::kExperts
  MatrixRef router(std::uint32_t layer) const;
  std::optional<TensorShape> correction_bias(std::uint32_t layer) const;
  std::optional<TensorShape> router_bias(std::uint32_t layer) const;
  FfnTensors expert(std::uint32_t layer, std::uint32_t expert) const;
  FfnTensors shared_expert(std::uint32_t layer) const;
  std::optional<MatrixRef> shared_gate(std::uint32_t layer) const;

  // FfnKind::kDense
  FfnTensors dense_ffn(std::uint32_t layer, DenseSlice slice) const;

  /// What the names of all layers' tensors begin with.
  const std::string& layers() const { return layers_; }

  /// Every tensor of the model, some more than once.
  void for_each(const std::function<void(const TensorShape&)>& visit) const;

 private:
  std::string in_layer(std::uint32_t layer, const std::string& name) const;
  TensorShape norm(std::string name, std::uint64_t dim) const;
  void place_separate(const std::string& prefix, std::vector<PlacedMatrix>& in) const;
  void place_by_k_head(const std::string& prefix, std::vector<PlacedMatrix>& in) const;
  FfnTensors stacked_expert(std::uint32_t layer, std::uint32_t expert) const;
  FfnTensors interleaved_expert(std::uint32_t layer, std::uint32_t expert) const;
  void add_expert_biases(std::uint32_t layer, std::uint32_t expert, FfnTensors& ffn) const;
  using Visit = std::function<void(const TensorShape&)>;
  void visit_layer(std::uint32_t layer, const Visit& visit) const;
  void visit_attention(std::uint32_t layer, const Visit& visit) const;

  const ModelSpec& spec_;
  const TensorNames& names_;
  const TensorSource& source_;
  std::string decoder_;     // of names_.decoder, the one that is there
  std::string layers_;      // in it
  std::string sparse_ffn_;  // of names_.sparse_ffn, the one that is there
  bool stacked_ = false;    // experts of a layer are one tensor
};

}  // namespace fastfd::model
