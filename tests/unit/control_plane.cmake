fastfd_add_test(control_plane_test
  SOURCES ${CMAKE_CURRENT_LIST_DIR}/control_plane_handshake_test.cpp
  DEPENDS fastfd::control_plane)
