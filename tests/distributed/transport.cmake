fastfd_add_test(transport_processes_test
  SOURCES ${CMAKE_CURRENT_LIST_DIR}/transport_processes_test.cpp
  DEPENDS fastfd::transport fmt::fmt)
