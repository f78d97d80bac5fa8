add_library(fastfd_test_support_golden STATIC
  ${CMAKE_CURRENT_LIST_DIR}/../support/golden.cpp
  ${CMAKE_CURRENT_LIST_DIR}/../support/pairwise.cpp)
target_include_directories(fastfd_test_support_golden PUBLIC ${CMAKE_CURRENT_LIST_DIR}/..)
target_link_libraries(fastfd_test_support_golden PUBLIC fastfd::core
                      PRIVATE nlohmann_json::nlohmann_json fastfd_build_flags)
fastfd_add_test(two_servers_test
  SOURCES ${CMAKE_CURRENT_LIST_DIR}/two_servers_test.cpp
  DEPENDS fastfd::attention_server fastfd::ffn_server fastfd::transport fastfd_test_support_golden)
