#pragma once

#include "fastfd/core/dtype.h"
#include "fastfd/device/cpu.h"

namespace fastfd::bench {

/// Bytes a second that one thread reads from memory (a buffer larger than any cache), best of
/// several passes. Measured once.
double memory_read_bytes_per_second();

/// Floating-point operations a second of one core: independent multiply-adds (bf16 dot products for
/// kBFloat16 where `isa` has them) on registers alone, best of several passes. Measured once each.
double peak_flops_per_second(device::Isa isa, Precision precision);

}  // namespace fastfd::bench
