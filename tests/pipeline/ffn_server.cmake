fastfd_add_test(ffn_server_test
  SOURCES ${CMAKE_CURRENT_LIST_DIR}/ffn_server_test.cpp
  DEPENDS fastfd::ffn_server fastfd::transport)
