fastfd_add_test(kernels_test
  SOURCES ${CMAKE_CURRENT_LIST_DIR}/kernels_gemm_test.cpp
  DEPENDS fastfd::kernels)
