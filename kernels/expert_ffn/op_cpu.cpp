#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "kernels/expert_ffn/op.h"
#include "kernels/simd/kernel_table.h"
#include "kernels/simd/launch.h"

namespace fastfd::kernels {

struct ExpertFfnScratch::Impl {
  device::HostBuffer route_begin;    ///< uint32 [num_experts + 1]
  device::HostBuffer route_cursor;   ///< uint32 [num_experts]
  device::HostBuffer route_tokens;   ///< uint32 [num_routes], grouped by expert
  device::HostBuffer route_weights;  ///< float [num_routes], grouped by expert
  device::HostBuffer blocks;         ///< Block [num_blocks]
  device::HostBuffer inputs;         ///< activations as the GEMM reads them, unless they lie so
  device::HostBuffer input_rows;     ///< const void* [num_tokens]
  device::HostBuffer hidden;         ///< [num_routes, padded intermediate], as the GEMM reads it
  device::HostBuffer sums;           ///< float [num_panels, num_tokens, 64]
};

ExpertFfnScratch::ExpertFfnScratch() : impl_(new Impl) {}
ExpertFfnScratch::~ExpertFfnScratch() { delete impl_; }
ExpertFfnScratch::ExpertFfnScratch(ExpertFfnScratch&& other) noexcept
    : impl_(std::exchange(other.impl_, nullptr)) {}
ExpertFfnScratch& ExpertFfnScratch::operator=(ExpertFfnScratch&& other) noexcept {
  std::swap(impl_, other.impl_);
  return *this;
}

namespace {

/// Rows of one expert that pass over its weights together.
constexpr std::int64_t kBlockRows = 64;
constexpr std::int64_t kHalfPanel = kPanelRows / 2;

struct Block {
  std::uint32_t expert = 0;
  std::uint32_t first_route = 0;  ///< into the grouped routes
  std::uint32_t num_routes = 0;
};

Status check_params(const ExpertFfnParams& params) {
  const auto is_legal = [](DType dtype) {
    return dtype == DType::kFloat32 || dtype == DType::kBFloat16;
  };
  if (!is_legal(params.token_dtype) || !is_legal(params.out_dtype)) {
    return {StatusCode::kInvalidArgument,
            "expert FFN: tokens and results must be float32 or bfloat16"};
  }
  for (std::size_t i = 0; i < params.experts.size(); ++i) {
    const ExpertWeights& expert = params.experts[i];
    const std::int64_t padded =
        (params.intermediate_dim + kHalfPanel - 1) / kHalfPanel * kHalfPanel;
    if (expert.gate_up.n() != 2 * padded || expert.gate_up.k() != params.hidden_dim ||
        expert.down.n() != params.hidden_dim || expert.down.k() != padded) {
      return {StatusCode::kInvalidArgument,
              fmt::format("expert FFN: weights of expert {} are not of shape {} x {}", i,
                          params.hidden_dim, params.intermediate_dim)};
    }
    const auto is_bias_of = [](const std::vector<float>& bias, std::int64_t num_rows) {
      return bias.empty() || static_cast<std::int64_t>(bias.size()) == num_rows;
    };
    if (!is_bias_of(expert.gate_up_bias, 2 * padded) ||
        !is_bias_of(expert.down_bias, params.hidden_dim)) {
      return {StatusCode::kInvalidArgument,
              fmt::format("expert FFN: biases of expert {} are not those of its weights", i)};
    }
  }
  if (params.num_tokens == 0) {
    return Status::ok();
  }
  if (params.route_offsets[0] != 0) {
    return {StatusCode::kInvalidArgument, "expert FFN: route offsets must start at 0"};
  }
  for (std::int64_t token = 0; token < params.num_tokens; ++token) {
    if (params.route_offsets[token + 1] < params.route_offsets[token]) {
      return {StatusCode::kInvalidArgument,
              fmt::format("expert FFN: route offsets descend at token {}", token)};
    }
  }
  for (std::uint32_t route = 0; route < params.route_offsets[params.num_tokens]; ++route) {
    if (params.route_experts[route] >= params.experts.size()) {
      return {StatusCode::kInvalidArgument,
              fmt::format("expert FFN: route {} names expert {}, but this server has {}", route,
                          params.route_experts[route], params.experts.size())};
    }
  }
  return Status::ok();
}

/// One launch: group the routes by expert; gate, up and activation of every route; then, panel by
/// panel of the output, down projections added up per token in ascending expert order.
class GroupedFfn {
 public:
  GroupedFfn(const ExpertFfnParams& params, ExpertFfnScratch::Impl& scratch,
             const device::CpuStream& stream)
      : params_(params),
        scratch_(scratch),
        stream_(stream),
        table_(simd::kernel_table(stream.isa)),
        bf16_gemm_(params.precision == Precision::kBFloat16 && table_.gemm_bf16 != nullptr),
        element_bytes_(bf16_gemm_ ? 2 : 4),
        padded_intermediate_((params.intermediate_dim + kHalfPanel - 1) / kHalfPanel * kHalfPanel),
        num_routes_(params.num_tokens > 0 ? params.route_offsets[params.num_tokens] : 0) {}

  Status run() {
    group_routes();
    prepare_inputs();
    hidden_ = simd::reserve<std::byte>(scratch_.hidden,
                                       num_routes_ * padded_intermediate_ * element_bytes_);
    const std::int64_t num_panels = (params_.hidden_dim + kPanelRows - 1) / kPanelRows;
    sums_ = simd::reserve<float>(scratch_.sums, num_panels * params_.num_tokens * kPanelRows);
    const double flops = 2.0 * static_cast<double>(num_routes_) *
                         static_cast<double>(params_.hidden_dim * padded_intermediate_);
    const double bytes = 2.0 * static_cast<double>(num_blocks_) *
                         static_cast<double>(params_.hidden_dim * padded_intermediate_);
    // Units of work of the first half: one panel of one block, so that a few large experts still
    // spread over all workers.
    const std::int64_t panels_per_block = padded_intermediate_ / kHalfPanel;
    simd::split(stream_, num_blocks_ * panels_per_block, 1,
                simd::estimated_microseconds(2.0 * flops, 2.0 * bytes),
                [this, panels_per_block](std::int64_t begin, std::int64_t end) {
                  while (begin < end) {
                    const std::int64_t block = begin / panels_per_block;
                    const std::int64_t first = begin % panels_per_block;
                    const std::int64_t last = std::min(panels_per_block, first + end - begin);
                    if (abort_requested()) {
                      return;
                    }
                    run_gate_up(blocks_[block], first, last);
                    begin += last - first;
                  }
                });
    simd::split(stream_, num_panels, 1, simd::estimated_microseconds(flops, bytes),
                [this](std::int64_t begin, std::int64_t end) {
                  for (std::int64_t panel = begin; panel < end; ++panel) {
                    run_down(panel);
                  }
                });
    if (aborted_.load(std::memory_order_relaxed)) {
      return {StatusCode::kAborted, "expert FFN: the epoch was abandoned"};
    }
    return Status::ok();
  }

 private:
  bool abort_requested() {
    if (params_.abort != nullptr && params_.abort->load(std::memory_order_relaxed)) {
      aborted_.store(true, std::memory_order_relaxed);
    }
    return aborted_.load(std::memory_order_relaxed);
  }

  /// Counting sort: the routes of an expert lie together, by ascending token.
  void group_routes() {
    const auto num_experts = static_cast<std::int64_t>(params_.experts.size());
    auto* begin = simd::reserve<std::uint32_t>(scratch_.route_begin, num_experts + 1);
    auto* cursor = simd::reserve<std::uint32_t>(scratch_.route_cursor, num_experts);
    route_tokens_ = simd::reserve<std::uint32_t>(scratch_.route_tokens, num_routes_);
    route_weights_ = simd::reserve<float>(scratch_.route_weights, num_routes_);
    std::fill_n(begin, num_experts + 1, 0U);
    for (std::int64_t route = 0; route < num_routes_; ++route) {
      ++begin[params_.route_experts[route] + 1];
    }
    std::int64_t max_blocks = 0;
    for (std::int64_t expert = 0; expert < num_experts; ++expert) {
      max_blocks += (begin[expert + 1] + kBlockRows - 1) / kBlockRows;
      begin[expert + 1] += begin[expert];
      cursor[expert] = begin[expert];
    }
    for (std::int64_t token = 0; token < params_.num_tokens; ++token) {
      for (std::uint32_t r = params_.route_offsets[token]; r < params_.route_offsets[token + 1];
           ++r) {
        const std::uint32_t slot = cursor[params_.route_experts[r]]++;
        route_tokens_[slot] = static_cast<std::uint32_t>(token);
        route_weights_[slot] = params_.route_weights[r];
      }
    }
    blocks_ = simd::reserve<Block>(scratch_.blocks, max_blocks);
    num_blocks_ = 0;
    for (std::int64_t expert = 0; expert < num_experts; ++expert) {
      for (std::uint32_t first = begin[expert]; first < begin[expert + 1]; first += kBlockRows) {
        const std::uint32_t left = begin[expert + 1] - first;
        blocks_[num_blocks_++] = {static_cast<std::uint32_t>(expert), first,
                                  std::min(left, static_cast<std::uint32_t>(kBlockRows))};
      }
    }
  }

  /// Row pointers of the form that the GEMM reads; tokens already in it are read where they lie.
  void prepare_inputs() {
    const std::int64_t dim = params_.hidden_dim;
    input_rows_ = simd::reserve<const void*>(scratch_.input_rows, params_.num_tokens);
    const bool token_is_bf16 = params_.token_dtype == DType::kBFloat16;
    const bool rounded = params_.precision == Precision::kBFloat16;
    const bool as_it_lies = bf16_gemm_ ? token_is_bf16 && dim % 2 == 0 : !token_is_bf16 && !rounded;
    if (as_it_lies) {
      std::copy_n(params_.token_rows, params_.num_tokens, input_rows_);
      return;
    }
    const std::int64_t stride = (dim + 1) / 2 * 2;
    auto* inputs =
        simd::reserve<std::byte>(scratch_.inputs, params_.num_tokens * stride * element_bytes_);
    for (std::int64_t token = 0; token < params_.num_tokens; ++token) {
      std::byte* row = inputs + token * stride * element_bytes_;
      input_rows_[token] = row;
      const void* source = params_.token_rows[token];
      if (bf16_gemm_) {
        auto* bits = reinterpret_cast<std::uint16_t*>(row);
        if (token_is_bf16) {
          std::copy_n(static_cast<const std::uint16_t*>(source), dim, bits);
        } else {
          table_.to_bf16(static_cast<const float*>(source), bits, dim);
        }
        std::fill(bits + dim, bits + stride, std::uint16_t{0});
      } else if (token_is_bf16) {
        table_.from_bf16(static_cast<const std::uint16_t*>(source), reinterpret_cast<float*>(row),
                         dim);
      } else {
        table_.round_bf16(static_cast<const float*>(source), reinterpret_cast<float*>(row), dim);
      }
    }
  }

  void gemm(const simd::GemmPanels& panels) const {
    if (bf16_gemm_) {
      table_.gemm_bf16(panels);
    } else {
      table_.gemm_f32(panels);
    }
  }

  /// One panel of a block's rows against `weights`: c [num_routes, 64].
  void panel_gemm(const Block& block, const void* const* rows, const PackedWeights& weights,
                  std::int64_t panel, float* c) const {
    gemm({.rows = rows,
          .num_rows = block.num_routes,
          .weights = &weights.data()[panel * kPanelRows * weights.padded_k()].bits,
          .k = weights.k(),
          .num_columns = std::min(kPanelRows, weights.n() - panel * kPanelRows),
          .c = c,
          .ldc = kPanelRows,
          .accumulate = false});
  }

  std::byte* hidden_row(std::int64_t route) const {
    return hidden_ + route * padded_intermediate_ * element_bytes_;
  }

  void activate(float* gate_up, const float* bias, float* units) const {
    if (bias != nullptr) {
      table_.axpy(1.0F, bias, gate_up, kPanelRows);
    }
    const ActivationRule& rule = params_.activation;
    if (rule.kind == GatedActivation::kClampedSwiglu) {
      table_.clamped_swiglu(gate_up, units, rule.alpha, rule.limit);
    } else {
      table_.swiglu(gate_up, units);
    }
  }

  /// Hidden units of panels [first, last) of a block.
  void run_gate_up(const Block& block, std::int64_t first, std::int64_t last) const {
    std::array<const void*, kBlockRows> rows;
    for (std::uint32_t i = 0; i < block.num_routes; ++i) {
      rows[i] = input_rows_[route_tokens_[block.first_route + i]];
    }
    alignas(64) std::array<float, kBlockRows * kPanelRows> gate_up;
    alignas(64) std::array<float, kHalfPanel> units;
    const PackedWeights& weights = params_.experts[block.expert].gate_up;
    const auto& biases = params_.experts[block.expert].gate_up_bias;
    for (std::int64_t panel = first; panel < last; ++panel) {
      panel_gemm(block, rows.data(), weights, panel, gate_up.data());
      const float* bias = biases.empty() ? nullptr : biases.data() + panel * kPanelRows;
      for (std::uint32_t i = 0; i < block.num_routes; ++i) {
        activate(gate_up.data() + i * kPanelRows, bias, units.data());
        std::byte* target = hidden_row(block.first_route + i) + panel * kHalfPanel * element_bytes_;
        if (bf16_gemm_) {
          table_.to_bf16(units.data(), reinterpret_cast<std::uint16_t*>(target), kHalfPanel);
        } else if (params_.precision == Precision::kBFloat16) {
          table_.round_bf16(units.data(), reinterpret_cast<float*>(target), kHalfPanel);
        } else {
          std::copy(units.begin(), units.end(), reinterpret_cast<float*>(target));
        }
      }
    }
  }

  /// Output columns of one panel: every expert's part in ascending order, then the store.
  void run_down(std::int64_t panel) {
    const std::int64_t first_column = panel * kPanelRows;
    const std::int64_t num_columns = std::min(kPanelRows, params_.hidden_dim - first_column);
    float* sums = sums_ + panel * params_.num_tokens * kPanelRows;
    std::fill_n(sums, params_.num_tokens * kPanelRows, 0.0F);
    std::array<const void*, kBlockRows> rows;
    alignas(64) std::array<float, kBlockRows * kPanelRows> partial;
    for (std::int64_t b = 0; b < num_blocks_; ++b) {
      if (abort_requested()) {
        return;
      }
      const Block& block = blocks_[b];
      for (std::uint32_t i = 0; i < block.num_routes; ++i) {
        rows[i] = hidden_row(block.first_route + i);
      }
      panel_gemm(block, rows.data(), params_.experts[block.expert].down, panel, partial.data());
      const auto& biases = params_.experts[block.expert].down_bias;
      for (std::uint32_t i = 0; i < block.num_routes; ++i) {
        const std::uint32_t route = block.first_route + i;
        if (!biases.empty()) {
          table_.axpy(1.0F, biases.data() + first_column, partial.data() + i * kPanelRows,
                      num_columns);
        }
        table_.axpy(route_weights_[route], partial.data() + i * kPanelRows,
                    sums + route_tokens_[route] * kPanelRows, num_columns);
      }
    }
    for (std::int64_t token = 0; token < params_.num_tokens; ++token) {
      const float* sum = sums + token * kPanelRows;
      if (params_.out_dtype == DType::kFloat32) {
        std::copy_n(sum, num_columns, static_cast<float*>(params_.out_rows[token]) + first_column);
      } else {
        table_.to_bf16(sum, static_cast<std::uint16_t*>(params_.out_rows[token]) + first_column,
                       num_columns);
      }
    }
  }

  const ExpertFfnParams& params_;
  ExpertFfnScratch::Impl& scratch_;
  const device::CpuStream& stream_;
  const simd::KernelTable& table_;
  const bool bf16_gemm_;              ///< activations are bf16 in memory, else float
  const std::int64_t element_bytes_;  ///< of an activation
  const std::int64_t padded_intermediate_;
  const std::int64_t num_routes_;
  std::int64_t num_blocks_ = 0;
  Block* blocks_ = nullptr;
  std::uint32_t* route_tokens_ = nullptr;
  float* route_weights_ = nullptr;
  const void** input_rows_ = nullptr;
  std::byte* hidden_ = nullptr;
  float* sums_ = nullptr;
  std::atomic<bool> aborted_{false};
};

}  // namespace

Status launch_expert_ffn(const ExpertFfnParams& params, ExpertFfnScratch& scratch,
                         const device::CpuStream& stream) {
  if (Status status = check_params(params); !status) {
    return status;
  }
  if (params.num_tokens == 0) {
    return Status::ok();
  }
  return GroupedFfn(params, scratch.impl(), stream).run();
}

}  // namespace fastfd::kernels
