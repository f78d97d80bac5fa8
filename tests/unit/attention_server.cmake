fastfd_add_test(sequence_table_test
  SOURCES ${CMAKE_CURRENT_LIST_DIR}/sequence_table_test.cpp
  DEPENDS fastfd::attention_server)
