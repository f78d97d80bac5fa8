# Every public header compiles alone, and twice: one translation unit a header, built with the rest.
if(NOT FASTFD_BUILD_TESTS OR FASTFD_SANITIZE)
  return()
endif()

file(GLOB public_headers CONFIGURE_DEPENDS RELATIVE ${PROJECT_SOURCE_DIR}
     ${PROJECT_SOURCE_DIR}/include/fastfd/*/*.h ${PROJECT_SOURCE_DIR}/kernels/*/op.h
     ${PROJECT_SOURCE_DIR}/kernels/layout/*.h)
set(units)
foreach(header ${public_headers})
  string(REGEX REPLACE "^include/" "" included ${header})
  string(MAKE_C_IDENTIFIER ${included} unit)
  set(unit ${CMAKE_CURRENT_BINARY_DIR}/header_check/${unit}.cpp)
  file(CONFIGURE OUTPUT ${unit} CONTENT "#include \"${included}\"\n#include \"${included}\"\n")
  list(APPEND units ${unit})
endforeach()
add_library(fastfd_header_check OBJECT ${units})
target_include_directories(fastfd_header_check
  PRIVATE ${PROJECT_SOURCE_DIR}/include ${PROJECT_SOURCE_DIR})
target_compile_options(fastfd_header_check PRIVATE -O0 -g0)
# core alone: a public header must not need the include folders of other libraries.
target_link_libraries(fastfd_header_check PRIVATE fastfd::core fastfd_build_flags)
