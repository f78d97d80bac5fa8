fastfd_add_test(process_key_test
  SOURCES ${CMAKE_CURRENT_LIST_DIR}/process_key_test.cpp
  DEPENDS fastfd::cluster)
