# Warnings and sanitizers for FastFD's own targets only.
add_library(fastfd_build_flags INTERFACE)
target_compile_options(fastfd_build_flags INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wpedantic -Wshadow -Wnon-virtual-dtor>)
if(FASTFD_WERROR)
  target_compile_options(fastfd_build_flags INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Werror>)
endif()

set(FASTFD_SANITIZE "" CACHE STRING "address (with undefined), thread, or empty")
if(FASTFD_SANITIZE STREQUAL "address")
  set(sanitizers "-fsanitize=address,undefined" "-fno-sanitize-recover=undefined")
elseif(FASTFD_SANITIZE STREQUAL "thread")
  set(sanitizers "-fsanitize=thread")
elseif(FASTFD_SANITIZE)
  message(FATAL_ERROR "FASTFD_SANITIZE is '${FASTFD_SANITIZE}'; use address or thread")
endif()
if(sanitizers)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    # GCC's flow analysis takes the sanitizers' own branches for uses of unset values.
    list(APPEND sanitizers -Wno-maybe-uninitialized -Wno-array-bounds)
  endif()
  target_compile_options(fastfd_build_flags INTERFACE
    $<$<COMPILE_LANGUAGE:CXX>:${sanitizers} -fno-omit-frame-pointer -g1>)
  target_link_options(fastfd_build_flags INTERFACE ${sanitizers})
endif()
