add_executable(golden_matrix ${CMAKE_CURRENT_LIST_DIR}/golden_matrix.cpp)
target_compile_definitions(golden_matrix PRIVATE FASTFD_SOURCE_DIR="${PROJECT_SOURCE_DIR}")
target_link_libraries(golden_matrix PRIVATE fastfd::cluster fastfd_test_support_golden
                      CLI11::CLI11 fmt::fmt fastfd_build_flags)
# CI runs a pairwise-covering set of the settings; scripts/test --full all of them.
add_test(NAME golden_matrix COMMAND golden_matrix --pairwise
         WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
set_tests_properties(golden_matrix PROPERTIES LABELS "cpu" TIMEOUT 1800)
# In parts: a combination with one sequence at a time keeps little more than one core busy.
foreach(part RANGE 1 4)
  add_test(NAME golden_matrix_full_${part} COMMAND golden_matrix --full --part ${part} --parts 4
           WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
  set_tests_properties(golden_matrix_full_${part} PROPERTIES LABELS "slow" TIMEOUT 14400)
endforeach()
