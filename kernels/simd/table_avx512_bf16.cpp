#include "kernels/simd/make_table.h"

namespace fastfd::kernels::simd {

const KernelTable& avx512_bf16_table() {
  static constexpr KernelTable kTable = FASTFD_SIMD::make_table("avx512-bf16");
  return kTable;
}

}  // namespace fastfd::kernels::simd
