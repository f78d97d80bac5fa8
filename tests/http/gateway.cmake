set(gateway_test_support
  ${CMAKE_CURRENT_LIST_DIR}/fake_engine.cpp ${CMAKE_CURRENT_LIST_DIR}/fake_text.cpp
  ${CMAKE_CURRENT_LIST_DIR}/http_client.cpp ${CMAKE_CURRENT_LIST_DIR}/stream_swarm.cpp)
fastfd_add_test(gateway_test
  SOURCES ${gateway_test_support}
          ${CMAKE_CURRENT_LIST_DIR}/channel_reader_test.cpp
          ${CMAKE_CURRENT_LIST_DIR}/concurrency_test.cpp
          ${CMAKE_CURRENT_LIST_DIR}/disconnect_test.cpp
          ${CMAKE_CURRENT_LIST_DIR}/generation_request_test.cpp
          ${CMAKE_CURRENT_LIST_DIR}/generation_test.cpp
          ${CMAKE_CURRENT_LIST_DIR}/json_text_test.cpp
          ${CMAKE_CURRENT_LIST_DIR}/lifecycle_test.cpp
          ${CMAKE_CURRENT_LIST_DIR}/model_text_service_test.cpp
          ${CMAKE_CURRENT_LIST_DIR}/protocol_test.cpp
          ${CMAKE_CURRENT_LIST_DIR}/reasoning_splitter_test.cpp
  DEPENDS fastfd::gateway nlohmann_json::nlohmann_json)

# The official Python client; skipped by name where it is not installed.
if(FASTFD_BUILD_TESTS)
  add_executable(fake_gateway ${CMAKE_CURRENT_LIST_DIR}/fake_gateway.cpp ${gateway_test_support})
  target_include_directories(fake_gateway PRIVATE ${PROJECT_SOURCE_DIR}/src
                             ${PROJECT_SOURCE_DIR}/tests)
  target_link_libraries(fake_gateway PRIVATE fastfd::gateway fastfd_build_flags)
  find_program(FASTFD_PYTHON3 python3 REQUIRED)
  add_test(NAME openai_client
           COMMAND ${FASTFD_PYTHON3} ${CMAKE_CURRENT_LIST_DIR}/openai_client_test.py
                   --start $<TARGET_FILE:fake_gateway>)
  set_tests_properties(openai_client PROPERTIES LABELS cpu TIMEOUT 300 SKIP_RETURN_CODE 77)
endif()
