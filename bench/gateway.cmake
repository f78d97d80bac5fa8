fastfd_add_benchmark(gateway_bench
  SOURCES ${CMAKE_CURRENT_LIST_DIR}/gateway_bench.cpp
          ${PROJECT_SOURCE_DIR}/tests/http/fake_engine.cpp
          ${PROJECT_SOURCE_DIR}/tests/http/fake_text.cpp
          ${PROJECT_SOURCE_DIR}/tests/http/stream_swarm.cpp
  DEPENDS fastfd::gateway)
if(TARGET gateway_bench)
  target_include_directories(gateway_bench PRIVATE ${PROJECT_SOURCE_DIR}/tests)
endif()
