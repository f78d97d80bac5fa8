fastfd_add_test(sequence_table_test
  SOURCES ${CMAKE_CURRENT_LIST_DIR}/sequence_table_test.cpp
  DEPENDS fastfd::attention_server)
fastfd_add_test(recurrent_state_test
  SOURCES ${CMAKE_CURRENT_LIST_DIR}/recurrent_state_test.cpp
  DEPENDS fastfd::attention_server)
