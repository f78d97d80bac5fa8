# The CUDA toolkit, if there is one: FASTFD_HAVE_CUDA. Without it the CPU system builds.
set(FASTFD_CUDA AUTO CACHE STRING "Build the CUDA sources: AUTO (if nvcc is found), ON or OFF")
set(FASTFD_HAVE_CUDA OFF)
if(FASTFD_CUDA STREQUAL "OFF")
  return()
endif()

# Debian's PATH does not have the toolkit; enable_language reads CMAKE_CUDA_COMPILER only.
if(NOT CMAKE_CUDA_COMPILER)
  find_program(FASTFD_NVCC nvcc HINTS ENV CUDA_HOME ENV CUDA_PATH
               PATHS /usr/local/cuda PATH_SUFFIXES bin)
  if(FASTFD_NVCC)
    set(CMAKE_CUDA_COMPILER ${FASTFD_NVCC})
  endif()
endif()
if(NOT CMAKE_CUDA_COMPILER)
  if(FASTFD_CUDA STREQUAL "ON")
    message(FATAL_ERROR "FASTFD_CUDA is ON but there is no nvcc; install the CUDA toolkit, name its "
                        "nvcc with -DCMAKE_CUDA_COMPILER=..., or say -DFASTFD_CUDA=OFF")
  endif()
  message(STATUS "No nvcc: building the CPU system")
  return()
endif()

# wgmma and the other instructions of Hopper need the `a` target.
if(NOT CMAKE_CUDA_ARCHITECTURES)
  set(CMAKE_CUDA_ARCHITECTURES 90a-real)
endif()
set(CMAKE_CUDA_STANDARD 20)
enable_language(CUDA)
# CMake 3.25 does not know nvcc's spelling of C++20.
set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION -std=c++20)
find_package(CUDAToolkit REQUIRED)
set(FASTFD_HAVE_CUDA ON)
message(STATUS "CUDA ${CMAKE_CUDA_COMPILER_VERSION} for ${CMAKE_CUDA_ARCHITECTURES}")
