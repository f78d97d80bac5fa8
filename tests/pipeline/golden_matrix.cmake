add_executable(golden_matrix ${CMAKE_CURRENT_LIST_DIR}/golden_matrix.cpp)
target_compile_definitions(golden_matrix PRIVATE FASTFD_SOURCE_DIR="${PROJECT_SOURCE_DIR}")
target_link_libraries(golden_matrix PRIVATE fastfd::cluster fastfd_test_support_golden
                      CLI11::CLI11 fmt::fmt fastfd_build_flags)
# CI runs a pairwise-covering set of the settings; scripts/test --full all of them.
add_test(NAME golden_matrix COMMAND golden_matrix --pairwise
         WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
set_tests_properties(golden_matrix PROPERTIES LABELS "cpu" TIMEOUT 1800)
add_test(NAME golden_matrix_full COMMAND golden_matrix --full
         WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
set_tests_properties(golden_matrix_full PROPERTIES LABELS "slow" TIMEOUT 14400)
