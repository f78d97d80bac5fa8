fastfd_add_test(codec_test
  SOURCES ${CMAKE_CURRENT_LIST_DIR}/codec_test.cpp
  DEPENDS fastfd::control_plane)
