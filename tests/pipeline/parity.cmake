fastfd_add_test(parity_test
  SOURCES ${CMAKE_CURRENT_LIST_DIR}/parity_test.cpp
  DEPENDS fastfd::cluster fastfd::model fastfd_test_support_golden
  TIMEOUT 900)
find_program(FASTFD_TEST_PYTHON NAMES python3 DOC "Interpreter of the tests written in Python")
# Skipped by name where transformers and torch are missing, or not those of the committed files.
add_test(NAME reference_models COMMAND ${FASTFD_TEST_PYTHON} -B
         ${PROJECT_SOURCE_DIR}/tests/reference/models/make_models.py --check)
set_tests_properties(reference_models PROPERTIES LABELS "slow" TIMEOUT 1800 SKIP_RETURN_CODE 77)
