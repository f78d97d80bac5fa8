# NCCL, if it is there: FASTFD_HAVE_NCCL. Its header is needed to build transport nccl; the library is
# loaded at run time, and only its place is noted here.
set(FASTFD_HAVE_NCCL OFF)
if(NOT FASTFD_HAVE_CUDA)
  return()
endif()
find_path(NCCL_INCLUDE_DIR nccl.h HINTS ${NCCL_ROOT} ENV NCCL_ROOT ${CUDAToolkit_INCLUDE_DIRS}
          PATH_SUFFIXES include)
find_library(NCCL_LIBRARY NAMES nccl libnccl.so.2
             HINTS ${NCCL_ROOT} ENV NCCL_ROOT ${CUDAToolkit_LIBRARY_DIR}
                   ${CUDAToolkit_LIBRARY_ROOT} PATH_SUFFIXES lib lib64)
if(NOT NCCL_INCLUDE_DIR)
  message(STATUS "No nccl.h: building without transport nccl (libnccl-dev, or NCCL_ROOT)")
  return()
endif()
set(FASTFD_HAVE_NCCL ON)
message(STATUS "NCCL headers in ${NCCL_INCLUDE_DIR}")
