#pragma once

/// Marks a function that both sides of a wire layout call: host code and, under nvcc, kernels.
#if defined(__CUDACC__)
#define FASTFD_HOST_DEVICE __host__ __device__
#else
#define FASTFD_HOST_DEVICE
#endif
