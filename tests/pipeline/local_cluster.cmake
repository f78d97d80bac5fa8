fastfd_add_test(local_cluster_test
  SOURCES ${CMAKE_CURRENT_LIST_DIR}/local_cluster_test.cpp
  DEPENDS fastfd::cluster fastfd::kernels fastfd_test_support_golden
  TIMEOUT 600)
