fastfd_add_test(bench_client_test
  SOURCES ${CMAKE_CURRENT_LIST_DIR}/bench_metrics_test.cpp
          ${CMAKE_CURRENT_LIST_DIR}/bench_parsers_test.cpp
          ${CMAKE_CURRENT_LIST_DIR}/bench_serve_test.cpp
  DEPENDS fastfd::bench_client nlohmann_json::nlohmann_json
  TIMEOUT 120)
