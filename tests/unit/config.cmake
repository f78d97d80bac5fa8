fastfd_add_test(config_test
  SOURCES ${CMAKE_CURRENT_LIST_DIR}/config_test.cpp ${CMAKE_CURRENT_LIST_DIR}/config_errors_test.cpp
          ${CMAKE_CURRENT_LIST_DIR}/model_cache_test.cpp
  DEPENDS fastfd::config)
