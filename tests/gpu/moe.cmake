# The data-plane kernels: wait, dispatch, combine.
fastfd_add_gpu_test(gpu_wait_test
  SOURCES ${CMAKE_CURRENT_LIST_DIR}/wait_test.cpp
  DEPENDS fastfd::kernels_cuda)
fastfd_add_gpu_test(gpu_dispatch_test
  SOURCES ${CMAKE_CURRENT_LIST_DIR}/dispatch_test.cpp
          ${CMAKE_CURRENT_LIST_DIR}/index_test.cpp
  DEPENDS fastfd::kernels_cuda fastfd::kernels)
fastfd_add_gpu_test(gpu_combine_test
  SOURCES ${CMAKE_CURRENT_LIST_DIR}/combine_test.cpp
  DEPENDS fastfd::kernels_cuda fastfd::kernels)
fastfd_add_gpu_test(gpu_moe_pipeline_test
  SOURCES ${CMAKE_CURRENT_LIST_DIR}/moe_pipeline_test.cpp
          ${CMAKE_CURRENT_LIST_DIR}/moe_cluster.cpp
          ${CMAKE_CURRENT_LIST_DIR}/naive_experts.cu
  DEPENDS fastfd::kernels_cuda fastfd::kernels)
