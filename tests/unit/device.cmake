fastfd_add_test(device_test
  SOURCES ${CMAKE_CURRENT_LIST_DIR}/device_test.cpp
  DEPENDS fastfd::device)
