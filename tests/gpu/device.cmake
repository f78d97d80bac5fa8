# Probe kernels, and this program again as a second process that runs them.
set(probe ${CMAKE_CURRENT_LIST_DIR}/probe_kernels.cu ${CMAKE_CURRENT_LIST_DIR}/probe.cpp
          ${CMAKE_CURRENT_LIST_DIR}/child_process.cpp)
fastfd_add_gpu_test(device_cuda_test
  SOURCES ${CMAKE_CURRENT_LIST_DIR}/device_cuda_test.cpp
          ${CMAKE_CURRENT_LIST_DIR}/device_processes_test.cpp
          ${CMAKE_CURRENT_LIST_DIR}/peer_process.cpp ${probe}
  DEPENDS fastfd::device fastfd::layout fastfd::transport
  LABELS gpu mps
  TIMEOUT 120)
fastfd_add_gpu_test(cuda_ipc_test
  SOURCES ${CMAKE_CURRENT_LIST_DIR}/cuda_ipc_test.cpp ${probe}
  DEPENDS fastfd::device fastfd::layout fastfd::transport
  LABELS gpu mps
  TIMEOUT 120)
