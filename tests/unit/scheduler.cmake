add_library(fastfd_test_support_fake_cluster STATIC
  ${CMAKE_CURRENT_LIST_DIR}/../support/fake_cluster.cpp)
target_include_directories(fastfd_test_support_fake_cluster
  PUBLIC ${PROJECT_SOURCE_DIR}/tests)
target_link_libraries(fastfd_test_support_fake_cluster
  PUBLIC fastfd::scheduler PRIVATE fastfd_build_flags)

fastfd_add_test(scheduler_test
  SOURCES ${CMAKE_CURRENT_LIST_DIR}/scheduler_test.cpp
          ${CMAKE_CURRENT_LIST_DIR}/scheduler_ledger_test.cpp
          ${CMAKE_CURRENT_LIST_DIR}/scheduler_lanes_test.cpp
          ${CMAKE_CURRENT_LIST_DIR}/scheduler_parts_test.cpp
  DEPENDS fastfd::scheduler fastfd_test_support_fake_cluster)

fastfd_add_test(scheduler_property_test
  SOURCES ${CMAKE_CURRENT_LIST_DIR}/scheduler_property_test.cpp
  DEPENDS fastfd::scheduler fastfd_test_support_fake_cluster)
