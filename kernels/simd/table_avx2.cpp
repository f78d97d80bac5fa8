#include "kernels/simd/make_table.h"

namespace fastfd::kernels::simd {

const KernelTable& avx2_table() {
  static constexpr KernelTable kTable = FASTFD_SIMD::make_table("avx2");
  return kTable;
}

}  // namespace fastfd::kernels::simd
