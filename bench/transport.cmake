fastfd_add_benchmark(transport_bench
  SOURCES ${CMAKE_CURRENT_LIST_DIR}/transport_bench.cpp
  DEPENDS fastfd::transport fmt::fmt)
