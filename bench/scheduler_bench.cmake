fastfd_add_benchmark(scheduler_bench
  SOURCES ${CMAKE_CURRENT_LIST_DIR}/scheduler_bench.cpp
  DEPENDS fastfd::scheduler)
