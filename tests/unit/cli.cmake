find_program(FASTFD_TEST_PYTHON NAMES python3 DOC "Interpreter of the tests written in Python")
add_test(NAME cli_test COMMAND ${FASTFD_TEST_PYTHON} ${CMAKE_CURRENT_LIST_DIR}/cli_test.py
         $<TARGET_FILE:fastfd> WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
add_test(NAME cli_cluster_test COMMAND ${FASTFD_TEST_PYTHON}
         ${CMAKE_CURRENT_LIST_DIR}/cli_cluster_test.py $<TARGET_FILE:fastfd>
         WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
add_test(NAME cli_install_test COMMAND ${FASTFD_TEST_PYTHON}
         ${CMAKE_CURRENT_LIST_DIR}/cli_install_test.py ${CMAKE_COMMAND} ${CMAKE_BINARY_DIR}
         WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
set_tests_properties(cli_test PROPERTIES LABELS cpu TIMEOUT 120)
# ThreadSanitizer watches threads: the cluster of processes is the other sanitizer's.
set_tests_properties(cli_cluster_test cli_install_test PROPERTIES LABELS "cpu;no_tsan" TIMEOUT 300
                     PROCESSORS 2)
