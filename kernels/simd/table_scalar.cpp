#include "kernels/simd/make_table.h"

namespace fastfd::kernels::simd {

const KernelTable& scalar_table() {
  static constexpr KernelTable kTable = FASTFD_SIMD::make_table("scalar");
  return kTable;
}

}  // namespace fastfd::kernels::simd
