#pragma once

#include "kernels/simd/table.h"
#include "kernels/simd/vec.h"

namespace fastfd::kernels::FASTFD_SIMD {
inline void attention(const simd::AttentionBlock&) {}
}
