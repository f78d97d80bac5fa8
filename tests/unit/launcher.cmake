fastfd_add_test(launcher_test
  SOURCES ${CMAKE_CURRENT_LIST_DIR}/launcher_supervisor_test.cpp
          ${CMAKE_CURRENT_LIST_DIR}/launcher_cluster_test.cpp
  DEPENDS fastfd::launcher
  TIMEOUT 120)
