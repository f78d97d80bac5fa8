#include "kernels/simd/kernel_table.h"

namespace fastfd::kernels::simd {

const KernelTable& scalar_table();
#if defined(__x86_64__)
const KernelTable& avx2_table();
const KernelTable& avx512_table();
const KernelTable& avx512_bf16_table();
#endif

const KernelTable& kernel_table(device::Isa isa) {
  switch (isa) {
#if defined(__x86_64__)
    case device::Isa::kAvx512Bf16:
      return avx512_bf16_table();
    case device::Isa::kAvx512:
      return avx512_table();
    case device::Isa::kAvx2:
      return avx2_table();
#endif
    default:
      return scalar_table();
  }
}

}  // namespace fastfd::kernels::simd
