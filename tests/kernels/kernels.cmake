foreach(op gemm attention latent_attention gated_delta_net dispatch expert_ffn sampling small_ops weights)
  fastfd_add_test(kernels_${op}_test
    SOURCES ${CMAKE_CURRENT_LIST_DIR}/kernels_${op}_test.cpp
    DEPENDS fastfd::kernels)
endforeach()
