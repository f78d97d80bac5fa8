# The data-plane kernels: wait, dispatch, combine.
fastfd_add_gpu_test(gpu_wait_test
  SOURCES ${CMAKE_CURRENT_LIST_DIR}/wait_test.cpp
  DEPENDS fastfd::kernels_cuda)
