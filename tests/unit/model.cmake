# Tiny seeded checkpoints, for any test that needs a model.
add_library(fastfd_test_support_checkpoint STATIC
  ${CMAKE_CURRENT_LIST_DIR}/../support/tiny_checkpoint.cpp)
target_include_directories(fastfd_test_support_checkpoint PUBLIC ${CMAKE_CURRENT_LIST_DIR}/..)
target_link_libraries(fastfd_test_support_checkpoint
  PUBLIC fastfd::core PRIVATE fastfd::kernels nlohmann_json::nlohmann_json fastfd_build_flags)

fastfd_add_test(model_test
  SOURCES ${CMAKE_CURRENT_LIST_DIR}/model_architectures_test.cpp
          ${CMAKE_CURRENT_LIST_DIR}/model_config_test.cpp
          ${CMAKE_CURRENT_LIST_DIR}/model_deepseek_test.cpp
          ${CMAKE_CURRENT_LIST_DIR}/model_dummy_test.cpp
          ${CMAKE_CURRENT_LIST_DIR}/model_gpt_oss_test.cpp
          ${CMAKE_CURRENT_LIST_DIR}/model_hybrid_test.cpp
          ${CMAKE_CURRENT_LIST_DIR}/model_fp8_test.cpp
          ${CMAKE_CURRENT_LIST_DIR}/model_loading_test.cpp
          ${CMAKE_CURRENT_LIST_DIR}/model_memory_test.cpp
          ${CMAKE_CURRENT_LIST_DIR}/model_safetensors_test.cpp
  DEPENDS fastfd::model fastfd_test_support_checkpoint nlohmann_json::nlohmann_json)
