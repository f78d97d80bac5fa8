fastfd_add_gpu_test(gemm_cuda_test
  SOURCES ${CMAKE_CURRENT_LIST_DIR}/gemm_cuda_test.cu
  DEPENDS fastfd::kernels_cuda)
