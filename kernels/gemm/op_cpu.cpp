#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>

#include "kernels/gemm/op.h"
#include "kernels/simd/kernel_table.h"
#include "kernels/simd/launch.h"

namespace fastfd::kernels {
namespace {

/// Rows that pass over the weights together: their activations stay in the second-level cache.
constexpr std::int64_t kRowBlock = 96;

struct Activations {
  const std::byte* rows = nullptr;
  std::int64_t stride_bytes = 0;
};

/// What the inner kernel reads: the caller's floats, or their rounded copy in `scratch`.
Activations prepare_activations(const GemmParams& params, const simd::KernelTable& table,
                                device::HostBuffer& scratch) {
  if (params.precision == Precision::kFloat32) {
    return {reinterpret_cast<const std::byte*>(params.a),
            params.lda * static_cast<std::int64_t>(sizeof(float))};
  }
  const std::int64_t k = params.weights->k();
  const std::int64_t stride = (k + 31) / 32 * 32;
  if (table.gemm_bf16 == nullptr) {
    float* rounded = simd::reserve<float>(scratch, params.m * stride);
    for (std::int64_t i = 0; i < params.m; ++i) {
      table.round_bf16(params.a + i * params.lda, rounded + i * stride, k);
    }
    return {reinterpret_cast<const std::byte*>(rounded),
            stride * static_cast<std::int64_t>(sizeof(float))};
  }
  auto* rounded = simd::reserve<std::uint16_t>(scratch, params.m * stride);
  for (std::int64_t i = 0; i < params.m; ++i) {
    table.to_bf16(params.a + i * params.lda, rounded + i * stride, k);
    if (k % 2 != 0) {
      rounded[i * stride + k] = 0;
    }
  }
  return {reinterpret_cast<const std::byte*>(rounded),
          stride * static_cast<std::int64_t>(sizeof(std::uint16_t))};
}

/// C (or zero) + bias, which the product is added to.
void begin_with_bias(const GemmParams& params) {
  const std::int64_t n = params.weights->n();
  for (std::int64_t row = 0; row < params.m; ++row) {
    float* c = params.c + row * params.ldc;
    for (std::int64_t i = 0; i < n; ++i) {
      c[i] = (params.accumulate ? c[i] : 0.0F) + params.bias[i];
    }
  }
}

void run_panels(const GemmParams& params, const simd::KernelTable& table,
                const Activations& activations, std::int64_t first_panel, std::int64_t end_panel) {
  const PackedWeights& weights = *params.weights;
  const std::int64_t first_column = first_panel * kPanelRows;
  std::array<const void*, kRowBlock> rows;
  for (std::int64_t first = 0; first < params.m; first += kRowBlock) {
    const std::int64_t num_rows = std::min(kRowBlock, params.m - first);
    for (std::int64_t i = 0; i < num_rows; ++i) {
      rows[static_cast<std::size_t>(i)] = activations.rows + (first + i) * activations.stride_bytes;
    }
    const simd::GemmPanels panels{
        .rows = rows.data(),
        .num_rows = num_rows,
        .weights = &weights.data()[first_column * weights.padded_k()].bits,
        .k = weights.k(),
        .num_columns = std::min(end_panel * kPanelRows, weights.n()) - first_column,
        .c = params.c + first * params.ldc + first_column,
        .ldc = params.ldc,
        .accumulate = params.accumulate || params.bias != nullptr};
    if (params.precision == Precision::kBFloat16 && table.gemm_bf16 != nullptr) {
      table.gemm_bf16(panels);
    } else {
      table.gemm_f32(panels);
    }
  }
}

}  // namespace

Status launch_gemm(const GemmParams& params, const device::CpuStream& stream) {
  if (params.weights == nullptr || params.m < 0) {
    return {StatusCode::kInvalidArgument, "gemm: needs weights and m >= 0"};
  }
  const PackedWeights& weights = *params.weights;
  if (params.m == 0 || weights.n() == 0) {
    return Status::ok();
  }
  if (params.lda < weights.k() || params.ldc < weights.n()) {
    return {StatusCode::kInvalidArgument,
            fmt::format("gemm: row strides {} and {} are shorter than k = {} and n = {}",
                        params.lda, params.ldc, weights.k(), weights.n())};
  }
  if (params.bias != nullptr) {
    begin_with_bias(params);
  }
  thread_local device::HostBuffer scratch;
  const simd::KernelTable& table = simd::kernel_table(stream.isa);
  const Activations activations = prepare_activations(params, table, scratch);
  const double microseconds = simd::estimated_microseconds(
      2.0 * static_cast<double>(params.m) * static_cast<double>(weights.n() * weights.k()),
      static_cast<double>(weights.num_bytes()));
  simd::split(stream, weights.num_panels(), 1, microseconds,
              [&](std::int64_t begin, std::int64_t end) {
                run_panels(params, table, activations, begin, end);
              });
  return Status::ok();
}

Status launch_gemm_batch(std::span<const GemmParams> batch, const device::CpuStream& stream) {
  double microseconds = 0.0;
  for (const GemmParams& params : batch) {
    if (params.weights != nullptr) {
      microseconds += simd::estimated_microseconds(
          2.0 * static_cast<double>(params.m) *
              static_cast<double>(params.weights->n() * params.weights->k()),
          static_cast<double>(params.weights->num_bytes()));
    }
  }
  const device::CpuStream alone{.workers = nullptr, .isa = stream.isa};
  std::atomic<const GemmParams*> refused{nullptr};
  simd::split(stream, static_cast<std::int64_t>(batch.size()), 1, microseconds,
              [&](std::int64_t begin, std::int64_t end) {
                for (std::int64_t i = begin; i < end; ++i) {
                  const GemmParams& params = batch[static_cast<std::size_t>(i)];
                  if (!launch_gemm(params, alone)) {
                    refused.store(&params, std::memory_order_relaxed);
                  }
                }
              });
  const GemmParams* bad = refused.load(std::memory_order_relaxed);
  return bad == nullptr ? Status::ok() : launch_gemm(*bad, alone);  // which says why
}

}  // namespace fastfd::kernels
