fastfd_add_test(dummy_cluster_test
  SOURCES ${CMAKE_CURRENT_LIST_DIR}/dummy_cluster_test.cpp
  DEPENDS fastfd::cluster fastfd_test_support_checkpoint)
