if(FASTFD_HAVE_NCCL)
  fastfd_add_gpu_test(gpu_nccl_test
    SOURCES ${CMAKE_CURRENT_LIST_DIR}/nccl_test.cpp
    DEPENDS fastfd::kernels_cuda fastfd::kernels fastfd::transport)
  fastfd_add_gpu_test(gpu_nccl_multi_gpu_test
    SOURCES ${CMAKE_CURRENT_LIST_DIR}/nccl_multi_gpu_test.cpp
    DEPENDS fastfd::layout fastfd::transport
    LABELS multi_gpu)
  target_include_directories(gpu_nccl_test SYSTEM PRIVATE ${NCCL_INCLUDE_DIR})
endif()
