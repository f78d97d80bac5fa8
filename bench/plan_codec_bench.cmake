fastfd_add_benchmark(plan_codec_bench
  SOURCES ${CMAKE_CURRENT_LIST_DIR}/plan_codec_bench.cpp
  DEPENDS fastfd::control_plane fastfd::scheduler)
