set(probe ${CMAKE_CURRENT_LIST_DIR}/probe_kernels.cu ${CMAKE_CURRENT_LIST_DIR}/peer_process.cpp)
fastfd_add_gpu_test(device_cuda_test
  SOURCES ${CMAKE_CURRENT_LIST_DIR}/device_cuda_test.cpp
          ${CMAKE_CURRENT_LIST_DIR}/device_processes_test.cpp ${probe}
  DEPENDS fastfd::device fastfd::layout fastfd::transport
  LABELS gpu mps
  TIMEOUT 120)
