foreach(op attention gated_delta_net latent_attention rope sampling lane_ops)
  fastfd_add_gpu_test(${op}_cuda_test
    SOURCES ${CMAKE_CURRENT_LIST_DIR}/${op}_cuda_test.cpp
    DEPENDS fastfd::kernels_cuda)
endforeach()
