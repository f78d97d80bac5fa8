if(FASTFD_BUILD_TESTS)
  find_program(FASTFD_TEST_PYTHON NAMES python3 DOC "Interpreter of the tests written in Python")
  add_test(NAME layering COMMAND ${FASTFD_TEST_PYTHON} ${PROJECT_SOURCE_DIR}/scripts/check-layering)
  add_test(NAME layering_test COMMAND ${FASTFD_TEST_PYTHON} ${CMAKE_CURRENT_LIST_DIR}/layering_test.py
           ${PROJECT_SOURCE_DIR}/scripts/check-layering)
  set_tests_properties(layering layering_test PROPERTIES LABELS cpu TIMEOUT 60)
endif()
