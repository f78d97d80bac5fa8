fastfd_add_test(coordinator_membership_test
  SOURCES ${CMAKE_CURRENT_LIST_DIR}/coordinator_membership_test.cpp
          ${CMAKE_CURRENT_LIST_DIR}/coordinator_stall_test.cpp
  DEPENDS fastfd::coordinator)
fastfd_add_test(coordinator_engine_test
  SOURCES ${CMAKE_CURRENT_LIST_DIR}/coordinator_engine_test.cpp
  DEPENDS fastfd::coordinator)
