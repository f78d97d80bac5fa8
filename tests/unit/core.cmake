fastfd_add_test(core_test
  SOURCES ${CMAKE_CURRENT_LIST_DIR}/core_test.cpp
  DEPENDS fastfd::core fastfd::device)
