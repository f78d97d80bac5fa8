fastfd_add_gpu_test(expert_ffn_cuda_test
  SOURCES ${CMAKE_CURRENT_LIST_DIR}/expert_ffn_cuda_test.cu
  DEPENDS fastfd::kernels_cuda)
