foreach(op gemm expert_ffn)
  fastfd_add_gpu_benchmark(${op}_cuda_bench
    SOURCES ${CMAKE_CURRENT_LIST_DIR}/${op}_cuda_bench.cu
    DEPENDS fastfd::kernels_cuda)
endforeach()
