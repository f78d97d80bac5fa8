foreach(op attention gated_delta_net latent_attention sampling)
  fastfd_add_gpu_benchmark(${op}_cuda_bench
    SOURCES ${CMAKE_CURRENT_LIST_DIR}/${op}_cuda_bench.cpp
    DEPENDS fastfd::kernels_cuda)
endforeach()
