fastfd_add_gpu_benchmark(data_plane_gpu_bench
  SOURCES ${CMAKE_CURRENT_LIST_DIR}/data_plane_bench.cu
  DEPENDS fastfd::kernels_cuda)
