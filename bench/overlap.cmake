add_executable(overlap_bench ${CMAKE_CURRENT_LIST_DIR}/overlap_bench.cpp)
target_include_directories(overlap_bench PRIVATE ${PROJECT_SOURCE_DIR}/src)
target_compile_definitions(overlap_bench PRIVATE FASTFD_SOURCE_DIR="${PROJECT_SOURCE_DIR}")
target_link_libraries(overlap_bench PRIVATE fastfd::cluster CLI11::CLI11 fmt::fmt
                      fastfd_build_flags)
