# Helpers that keep the folders' CMakeLists short.

# fastfd_add_library(<name> SOURCES a.cpp ... DEPENDS fastfd::core ... [PRIVATE_DEPENDS ...])
# Makes static library fastfd_<name> with alias fastfd::<name>.
function(fastfd_add_library name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPENDS;PRIVATE_DEPENDS" ${ARGN})
  add_library(fastfd_${name} STATIC ${ARG_SOURCES})
  add_library(fastfd::${name} ALIAS fastfd_${name})
  target_include_directories(fastfd_${name}
    PUBLIC ${PROJECT_SOURCE_DIR}/include ${PROJECT_SOURCE_DIR}
    PRIVATE ${PROJECT_SOURCE_DIR}/src)
  target_link_libraries(fastfd_${name}
    PUBLIC ${ARG_DEPENDS}
    PRIVATE ${ARG_PRIVATE_DEPENDS} fastfd_build_flags)
endfunction()

# fastfd_add_test(<name> SOURCES ... DEPENDS ... [LABELS cpu slow ...] [TIMEOUT s])
# One GoogleTest program = one CTest test; sources see src/ as well as include/.
function(fastfd_add_test name)
  cmake_parse_arguments(ARG "" "TIMEOUT" "SOURCES;DEPENDS;LABELS" ${ARGN})
  if(NOT FASTFD_BUILD_TESTS)
    return()
  endif()
  if(NOT ARG_LABELS)
    set(ARG_LABELS cpu)
  endif()
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 300)
  endif()
  add_executable(${name} ${ARG_SOURCES})
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR}/src ${PROJECT_SOURCE_DIR}/tests)
  target_compile_definitions(${name} PRIVATE FASTFD_SOURCE_DIR="${PROJECT_SOURCE_DIR}")
  target_link_libraries(${name} PRIVATE ${ARG_DEPENDS} GTest::gmock GTest::gtest_main
                        fastfd_build_flags)
  add_test(NAME ${name} COMMAND ${name} WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
  set_tests_properties(${name} PROPERTIES LABELS "${ARG_LABELS}" TIMEOUT ${ARG_TIMEOUT})
endfunction()

# fastfd_add_benchmark(<name> SOURCES ... DEPENDS ...): a Google Benchmark program.
function(fastfd_add_benchmark name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPENDS" ${ARGN})
  if(NOT FASTFD_BUILD_BENCHMARKS)
    return()
  endif()
  add_executable(${name} ${ARG_SOURCES})
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR}/src ${PROJECT_SOURCE_DIR})
  target_compile_definitions(${name} PRIVATE FASTFD_SOURCE_DIR="${PROJECT_SOURCE_DIR}")
  target_link_libraries(${name} PRIVATE ${ARG_DEPENDS} benchmark::benchmark fastfd_build_flags)
endfunction()

# What nvcc gets for FastFD's own targets.
function(fastfd_cuda_options target)
  target_link_libraries(${target} PRIVATE CUDA::cudart_static)
  target_compile_options(${target} PRIVATE
    $<$<COMPILE_LANGUAGE:CUDA>:--expt-relaxed-constexpr -lineinfo -Xcompiler=-Wall,-Wextra>)
endfunction()

# fastfd_add_cuda_library(<name> SOURCES a.cu b.cpp ... DEPENDS ... [PRIVATE_DEPENDS ...])
# The same for CUDA sources; call it only if FASTFD_HAVE_CUDA. The run-time library is linked
# statically, so the program starts where there is no driver.
function(fastfd_add_cuda_library name)
  fastfd_add_library(${name} ${ARGN})
  fastfd_cuda_options(fastfd_${name})
endfunction()

# A program that scripts/gpu-bundle can move: it finds shared libraries in ../lib, theirs as well.
function(fastfd_make_movable target)
  set_target_properties(${target} PROPERTIES BUILD_RPATH "\$ORIGIN/../lib")
  target_link_options(${target} PRIVATE LINKER:--disable-new-dtags)
endfunction()

# fastfd_add_gpu_test(<name> SOURCES ... DEPENDS ... [LABELS gpu ...] [TIMEOUT s]): a GoogleTest
# program with label `gpu`; with label `mps` as well, it runs once more under MPS. Target gpu_tests
# builds them all; scripts/gpu-test runs them.
function(fastfd_add_gpu_test name)
  cmake_parse_arguments(ARG "" "" "LABELS" ${ARGN})
  if(NOT ARG_LABELS)
    set(ARG_LABELS gpu)
  endif()
  fastfd_add_test(${name} ${ARG_UNPARSED_ARGUMENTS} LABELS ${ARG_LABELS})
  if(TARGET ${name})
    fastfd_cuda_options(${name})
    fastfd_make_movable(${name})
    if(NOT TARGET gpu_tests)
      add_custom_target(gpu_tests)
    endif()
    add_dependencies(gpu_tests ${name})
  endif()
endfunction()

# fastfd_add_gpu_benchmark(<name> SOURCES ... DEPENDS ... [MPS]): a plain program that times kernels
# with CUDA events, once more under MPS if it says so. Target gpu_benchmarks builds them all;
# scripts/gpu-bench runs them.
function(fastfd_add_gpu_benchmark name)
  cmake_parse_arguments(ARG "MPS" "" "SOURCES;DEPENDS" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR}/src ${PROJECT_SOURCE_DIR})
  target_link_libraries(${name} PRIVATE ${ARG_DEPENDS} fastfd_build_flags)
  fastfd_cuda_options(${name})
  fastfd_make_movable(${name})
  set(mps "-")
  if(ARG_MPS)
    set(mps "mps")
  endif()
  set_property(GLOBAL APPEND_STRING PROPERTY FASTFD_GPU_BENCHMARKS "$<TARGET_FILE:${name}> ${mps}\n")
  if(NOT TARGET gpu_benchmarks)
    add_custom_target(gpu_benchmarks)
  endif()
  add_dependencies(gpu_benchmarks ${name})
endfunction()
