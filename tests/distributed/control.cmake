fastfd_add_test(control_stream_test
  SOURCES ${CMAKE_CURRENT_LIST_DIR}/control_stream_test.cpp
  DEPENDS fastfd::control_plane fastfd_proto)
fastfd_add_test(control_cluster_test
  SOURCES ${CMAKE_CURRENT_LIST_DIR}/control_cluster_test.cpp
  DEPENDS fastfd::control_plane fastfd::coordinator)
