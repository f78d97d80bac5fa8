fastfd_add_benchmark(kernels_bench
  SOURCES ${CMAKE_CURRENT_LIST_DIR}/kernels_bench.cpp ${CMAKE_CURRENT_LIST_DIR}/kernels_limits.cpp
  DEPENDS fastfd::kernels)
