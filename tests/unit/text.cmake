fastfd_add_test(tokenizer_test
  SOURCES ${CMAKE_CURRENT_LIST_DIR}/tokenizer_test.cpp
          ${CMAKE_CURRENT_LIST_DIR}/tokenizer_errors_test.cpp
  DEPENDS fastfd::text nlohmann_json::nlohmann_json)

fastfd_add_test(detokenizer_test
  SOURCES ${CMAKE_CURRENT_LIST_DIR}/detokenizer_test.cpp
          ${CMAKE_CURRENT_LIST_DIR}/text_stop_matcher_test.cpp
          ${CMAKE_CURRENT_LIST_DIR}/text_regex_test.cpp
  DEPENDS fastfd::text nlohmann_json::nlohmann_json)

fastfd_add_test(chat_template_test
  SOURCES ${CMAKE_CURRENT_LIST_DIR}/chat_template_test.cpp
  DEPENDS fastfd::text nlohmann_json::nlohmann_json)
