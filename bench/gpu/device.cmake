set(probe ${PROJECT_SOURCE_DIR}/tests/gpu)
fastfd_add_gpu_benchmark(device_bench
  SOURCES ${CMAKE_CURRENT_LIST_DIR}/device_bench.cpp ${probe}/probe_kernels.cu
          ${probe}/probe.cpp ${probe}/child_process.cpp ${probe}/peer_process.cpp
  DEPENDS fastfd::device fastfd::layout fastfd::transport
  MPS)
