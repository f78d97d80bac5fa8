#pragma once

#include "fastfd/device/cpu.h"
#include "kernels/simd/table.h"

namespace fastfd::kernels::simd {

/// The kernels for `isa`. An instruction set this build lacks gives the scalar ones.
const KernelTable& kernel_table(device::Isa isa);

}  // namespace fastfd::kernels::simd
