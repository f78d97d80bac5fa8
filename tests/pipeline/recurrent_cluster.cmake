fastfd_add_test(recurrent_cluster_test
  SOURCES ${CMAKE_CURRENT_LIST_DIR}/recurrent_cluster_test.cpp
  DEPENDS fastfd::attention_server fastfd::cluster fastfd::ffn_server fastfd::transport
          fastfd_test_support_golden
  TIMEOUT 600)
