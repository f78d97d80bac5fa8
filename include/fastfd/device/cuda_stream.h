#pragma once

struct CUstream_st;

namespace fastfd::device {

/// A cudaStream_t, named without CUDA's headers: everything a GPU launcher needs to know of where
/// it runs. Launchers enqueue and return; the caller keeps what they point to alive until the
/// stream has passed.
using CudaStream = CUstream_st*;

}  // namespace fastfd::device
