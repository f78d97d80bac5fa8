fastfd_add_gpu_test(weights_cuda_test
  SOURCES ${CMAKE_CURRENT_LIST_DIR}/weights_cuda_test.cpp
  DEPENDS fastfd::kernels_cuda fastfd::model fastfd_test_support_checkpoint)
# Loads models of some GB into host memory as well, twice.
fastfd_add_gpu_test(dummy_model_test
  SOURCES ${CMAKE_CURRENT_LIST_DIR}/dummy_model_test.cpp
  DEPENDS fastfd::cluster fastfd_test_support_checkpoint fmt::fmt nlohmann_json::nlohmann_json
  TIMEOUT 600)
fastfd_add_gpu_test(gpu_host_free_step_test
  SOURCES ${CMAKE_CURRENT_LIST_DIR}/host_free_step_test.cpp
  DEPENDS fastfd::cluster fastfd_test_support_checkpoint)
