fastfd_add_test(mutation_test
  SOURCES ${CMAKE_CURRENT_LIST_DIR}/mutation_test.cpp ${CMAKE_CURRENT_LIST_DIR}/mutator.cpp
  DEPENDS fastfd::config fastfd::model fastfd_test_support_checkpoint)
