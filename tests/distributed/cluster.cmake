find_program(FASTFD_TEST_PYTHON NAMES python3 DOC "Interpreter of the tests written in Python")
add_test(NAME cluster_faults_test COMMAND ${FASTFD_TEST_PYTHON}
         ${CMAKE_CURRENT_LIST_DIR}/cluster_faults_test.py $<TARGET_FILE:fastfd>
         WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
set_tests_properties(cluster_faults_test PROPERTIES LABELS "cpu;no_tsan" TIMEOUT 600
                     PROCESSORS 2)
# The official client against real servers; 77: the openai package is not installed.
add_test(NAME openai_client_cluster_test COMMAND ${FASTFD_TEST_PYTHON}
         ${CMAKE_CURRENT_LIST_DIR}/openai_client_cluster_test.py $<TARGET_FILE:fastfd>
         WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
set_tests_properties(openai_client_cluster_test PROPERTIES LABELS "cpu;no_tsan" TIMEOUT 300
                     PROCESSORS 2 SKIP_RETURN_CODE 77)
# 77: transformers is not installed, or scripts/fetch-smollm2 has not run.
add_test(NAME smollm2_test COMMAND ${FASTFD_TEST_PYTHON} ${CMAKE_CURRENT_LIST_DIR}/smollm2_test.py
         $<TARGET_FILE:fastfd> WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
set_tests_properties(smollm2_test PROPERTIES LABELS "slow;no_tsan" TIMEOUT 900 PROCESSORS 2
                     SKIP_RETURN_CODE 77)
add_test(NAME model_files_test COMMAND ${FASTFD_TEST_PYTHON}
         ${CMAKE_CURRENT_LIST_DIR}/model_files_test.py $<TARGET_FILE:fastfd>
         WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
set_tests_properties(model_files_test PROPERTIES LABELS "cpu;no_tsan" TIMEOUT 300 PROCESSORS 2)
