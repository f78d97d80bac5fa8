#pragma once

/// Warpgroup matrix instructions (wgmma) whose operands both lie in shared memory, k contiguous
/// (but for TransposedMma), as rows of 128 bytes in the 128-byte swizzle: what the copy engine
/// writes with CU_TENSOR_MAP_SWIZZLE_128B. Four warps issue an instruction together.

#include <cstdint>

#include "kernels/cuda/hopper.cuh"

namespace fastfd::kernels::cuda {

inline constexpr int kSwizzleRowBytes = 128;
inline constexpr int kSwizzleAtomBytes = 8 * kSwizzleRowBytes;  ///< tiles are aligned to it
/// Bytes of k that one instruction takes: 16 bf16 or 32 e4m3 values.
inline constexpr int kMmaBytes = 32;
inline constexpr int kMmasPerRow = kSwizzleRowBytes / kMmaBytes;

/// Where 16-byte chunk `chunk` of row `row` lies in a tile.
__device__ inline std::uint32_t swizzled_offset(int row, int chunk) {
  return static_cast<std::uint32_t>(row * kSwizzleRowBytes + ((chunk ^ (row & 7)) << 4));
}

/// Descriptor of a tile that starts at a multiple of 8 rows: 1,024 bytes from one group of 8 rows
/// to the next (bits 32..45), 128-byte swizzle (bits 62..63). The instruction steps through k by
/// adding bytes to the start address.
__device__ inline std::uint64_t tile_descriptor(const void* tile) {
  constexpr std::uint64_t kGroupStride = kSwizzleAtomBytes >> 4;
  constexpr std::uint64_t kSwizzle128 = 1;
  return (std::uint64_t{shared_address(tile)} & 0x3ffff) >> 4 | std::uint64_t{1} << 16 |
         kGroupStride << 32 | kSwizzle128 << 62;
}

/// Descriptor of columns that lie the other way round, as TransposedMma takes them: tiles of 64
/// columns, each in rows of one k, `tile_bytes` from one to the next. Starts at a multiple of 8 k.
__device__ inline std::uint64_t transposed_descriptor(const void* tiles, std::uint32_t tile_bytes) {
  constexpr std::uint64_t kGroupStride = kSwizzleAtomBytes >> 4;
  constexpr std::uint64_t kSwizzle128 = 1;
  return (std::uint64_t{shared_address(tiles)} & 0x3ffff) >> 4 |
         std::uint64_t{tile_bytes >> 4} << 16 | kGroupStride << 32 | kSwizzle128 << 62;
}

/// The descriptor of the same tile's k step `step`.
__device__ inline std::uint64_t k_step(std::uint64_t descriptor, int step) {
  return descriptor + static_cast<std::uint64_t>(step * (kMmaBytes >> 4));
}

/// In front of the first instruction after the threads have touched the accumulators.
__device__ inline void mma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ inline void mma_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int kPending>
__device__ inline void mma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

/// Tells the compiler that running instructions write `values`, so that it moves no access to them
/// across.
template <int kCount>
__device__ inline void pin_registers(float (&values)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    asm volatile("" : "+f"(values[i])::"memory");
  }
}

enum class MmaType { kBFloat16, kFloat8E4M3 };

/// issue(): accumulators[64, kColumns] (+)= rows[64, k] * columns[kColumns, k]^T for one k step.
/// Thread t of the warpgroup, lane l of warp w, holds of row 16 w + l / 4 (i = 0, 1) and of the row
/// 8 further down (i = 2, 3) columns 8 j + 2 (l % 4) + i % 2 as accumulators[4 j + i].
template <MmaType kType, int kColumns>
struct Mma;

#define FASTFD_ACC4(i) "+f"(acc[i]), "+f"(acc[(i) + 1]), "+f"(acc[(i) + 2]), "+f"(acc[(i) + 3])

template <>
struct Mma<MmaType::kBFloat16, 16> {
  __device__ static void issue(float (&acc)[8], std::uint64_t rows, std::uint64_t columns,
                               bool keep) {
    asm volatile(
        "{\n"
        ".reg .pred keep;\n"
        "setp.ne.b32 keep, %10, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n16k16.f32.bf16.bf16 "
        "{%0, %1, %2, %3, %4, %5, %6, %7}, "
        "%8, %9, keep, 1, 1, 0, 0;\n"
        "}\n"
        : FASTFD_ACC4(0), FASTFD_ACC4(4)
        : "l"(rows), "l"(columns), "r"(keep ? 1 : 0));
  }
};

template <>
struct Mma<MmaType::kBFloat16, 32> {
  __device__ static void issue(float (&acc)[16], std::uint64_t rows, std::uint64_t columns,
                               bool keep) {
    asm volatile(
        "{\n"
        ".reg .pred keep;\n"
        "setp.ne.b32 keep, %18, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}, "
        "%16, %17, keep, 1, 1, 0, 0;\n"
        "}\n"
        : FASTFD_ACC4(0), FASTFD_ACC4(4), FASTFD_ACC4(8), FASTFD_ACC4(12)
        : "l"(rows), "l"(columns), "r"(keep ? 1 : 0));
  }
};

template <>
struct Mma<MmaType::kBFloat16, 64> {
  __device__ static void issue(float (&acc)[32], std::uint64_t rows, std::uint64_t columns,
                               bool keep) {
    asm volatile(
        "{\n"
        ".reg .pred keep;\n"
        "setp.ne.b32 keep, %34, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15,"
        " %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
        "%32, %33, keep, 1, 1, 0, 0;\n"
        "}\n"
        : FASTFD_ACC4(0), FASTFD_ACC4(4), FASTFD_ACC4(8), FASTFD_ACC4(12), FASTFD_ACC4(16),
          FASTFD_ACC4(20), FASTFD_ACC4(24), FASTFD_ACC4(28)
        : "l"(rows), "l"(columns), "r"(keep ? 1 : 0));
  }
};

template <>
struct Mma<MmaType::kBFloat16, 128> {
  __device__ static void issue(float (&acc)[64], std::uint64_t rows, std::uint64_t columns,
                               bool keep) {
    asm volatile(
        "{\n"
        ".reg .pred keep;\n"
        "setp.ne.b32 keep, %66, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15,"
        " %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31,"
        " %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47,"
        " %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
        "%64, %65, keep, 1, 1, 0, 0;\n"
        "}\n"
        : FASTFD_ACC4(0), FASTFD_ACC4(4), FASTFD_ACC4(8), FASTFD_ACC4(12), FASTFD_ACC4(16),
          FASTFD_ACC4(20), FASTFD_ACC4(24), FASTFD_ACC4(28), FASTFD_ACC4(32), FASTFD_ACC4(36),
          FASTFD_ACC4(40), FASTFD_ACC4(44), FASTFD_ACC4(48), FASTFD_ACC4(52), FASTFD_ACC4(56),
          FASTFD_ACC4(60)
        : "l"(rows), "l"(columns), "r"(keep ? 1 : 0));
  }
};

template <>
struct Mma<MmaType::kFloat8E4M3, 16> {
  __device__ static void issue(float (&acc)[8], std::uint64_t rows, std::uint64_t columns,
                               bool keep) {
    asm volatile(
        "{\n"
        ".reg .pred keep;\n"
        "setp.ne.b32 keep, %10, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n16k32.f32.e4m3.e4m3 "
        "{%0, %1, %2, %3, %4, %5, %6, %7}, "
        "%8, %9, keep, 1, 1;\n"
        "}\n"
        : FASTFD_ACC4(0), FASTFD_ACC4(4)
        : "l"(rows), "l"(columns), "r"(keep ? 1 : 0));
  }
};

template <>
struct Mma<MmaType::kFloat8E4M3, 32> {
  __device__ static void issue(float (&acc)[16], std::uint64_t rows, std::uint64_t columns,
                               bool keep) {
    asm volatile(
        "{\n"
        ".reg .pred keep;\n"
        "setp.ne.b32 keep, %18, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n32k32.f32.e4m3.e4m3 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}, "
        "%16, %17, keep, 1, 1;\n"
        "}\n"
        : FASTFD_ACC4(0), FASTFD_ACC4(4), FASTFD_ACC4(8), FASTFD_ACC4(12)
        : "l"(rows), "l"(columns), "r"(keep ? 1 : 0));
  }
};

template <>
struct Mma<MmaType::kFloat8E4M3, 64> {
  __device__ static void issue(float (&acc)[32], std::uint64_t rows, std::uint64_t columns,
                               bool keep) {
    asm volatile(
        "{\n"
        ".reg .pred keep;\n"
        "setp.ne.b32 keep, %34, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n64k32.f32.e4m3.e4m3 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15,"
        " %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
        "%32, %33, keep, 1, 1;\n"
        "}\n"
        : FASTFD_ACC4(0), FASTFD_ACC4(4), FASTFD_ACC4(8), FASTFD_ACC4(12), FASTFD_ACC4(16),
          FASTFD_ACC4(20), FASTFD_ACC4(24), FASTFD_ACC4(28)
        : "l"(rows), "l"(columns), "r"(keep ? 1 : 0));
  }
};

/// The same of bf16 columns as transposed_descriptor() has them; a k step is two groups of 8 k.
struct TransposedMma {
  static constexpr std::uint32_t kStepBytes = 2 * kSwizzleAtomBytes;

  __device__ static void issue(float (&acc)[128], std::uint64_t rows, std::uint64_t columns,
                               bool keep) {
    asm volatile(
        "{\n"
        ".reg .pred keep;\n"
        "setp.ne.b32 keep, %130, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15,"
        " %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31,"
        " %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47,"
        " %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63,"
        " %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79,"
        " %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95,"
        " %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, "
        "%111,"
        " %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, "
        "%126, %127}, "
        "%128, %129, keep, 1, 1, 0, 1;\n"
        "}\n"
        : FASTFD_ACC4(0), FASTFD_ACC4(4), FASTFD_ACC4(8), FASTFD_ACC4(12), FASTFD_ACC4(16),
          FASTFD_ACC4(20), FASTFD_ACC4(24), FASTFD_ACC4(28), FASTFD_ACC4(32), FASTFD_ACC4(36),
          FASTFD_ACC4(40), FASTFD_ACC4(44), FASTFD_ACC4(48), FASTFD_ACC4(52), FASTFD_ACC4(56),
          FASTFD_ACC4(60), FASTFD_ACC4(64), FASTFD_ACC4(68), FASTFD_ACC4(72), FASTFD_ACC4(76),
          FASTFD_ACC4(80), FASTFD_ACC4(84), FASTFD_ACC4(88), FASTFD_ACC4(92), FASTFD_ACC4(96),
          FASTFD_ACC4(100), FASTFD_ACC4(104), FASTFD_ACC4(108), FASTFD_ACC4(112), FASTFD_ACC4(116),
          FASTFD_ACC4(120), FASTFD_ACC4(124)
        : "l"(rows), "l"(columns), "r"(keep ? 1 : 0));
  }
};

#undef FASTFD_ACC4

}  // namespace fastfd::kernels::cuda
