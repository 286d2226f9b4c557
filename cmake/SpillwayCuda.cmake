# libspillway_cuda.so: everything that needs CUDA, loaded by name when a program asks for a card. It is built from the
# headers and libraries that come with torch's wheel (or a toolkit of the same version); without them it is left out, and
# `--device cuda` says so.
find_path(SPILLWAY_CUDA_INCLUDE cuda_runtime_api.h
  HINTS "${SPILLWAY_TORCH}/../nvidia/cu13/include" /usr/local/cuda/include NO_DEFAULT_PATH)
find_library(SPILLWAY_CUDART NAMES libcudart.so.13 cudart
  HINTS "${SPILLWAY_TORCH}/../nvidia/cu13/lib" /usr/local/cuda/lib64 NO_DEFAULT_PATH)
if(NOT SPILLWAY_CUDA_INCLUDE OR NOT SPILLWAY_CUDART OR NOT EXISTS "${SPILLWAY_TORCH}/lib/libtorch_cuda.so"
   OR NOT EXISTS "${SPILLWAY_TORCH}/include/c10/cuda/impl/cuda_cmake_macros.h")
  message(STATUS "No CUDA headers or libraries beside LibTorch: libspillway_cuda is left out")
  return()
endif()
message(STATUS "CUDA for libspillway_cuda: ${SPILLWAY_CUDA_INCLUDE}")

get_filename_component(cudart_folder "${SPILLWAY_CUDART}" DIRECTORY)
add_library(spillway_cuda SHARED allocator_cuda.cpp driver_cuda.cpp managed_cuda.cpp timeline_cuda.cpp)
target_compile_features(spillway_cuda PRIVATE cxx_std_20)
target_compile_options(spillway_cuda PRIVATE -Wall -Wextra)
set_target_properties(spillway_cuda PROPERTIES
  CXX_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON LIBRARY_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/lib"
  BUILD_RPATH "${SPILLWAY_TORCH}/lib;${cudart_folder}" INSTALL_RPATH "${SPILLWAY_TORCH}/lib;${cudart_folder}")
target_include_directories(spillway_cuda PRIVATE "${PROJECT_SOURCE_DIR}")
target_include_directories(spillway_cuda SYSTEM PRIVATE "${SPILLWAY_CUDA_INCLUDE}")
# Its own copies of what it uses of core stay inside; what has state is reached through the interfaces alone.
target_link_libraries(spillway_cuda PRIVATE spillway_core spillway::torch "${SPILLWAY_TORCH}/lib/libc10_cuda.so"
  "${SPILLWAY_TORCH}/lib/libtorch_cuda.so" "${SPILLWAY_CUDART}")
target_link_options(spillway_cuda PRIVATE -Wl,--exclude-libs,ALL -Wl,--no-undefined)
# kfac's part of it.
find_library(SPILLWAY_CUSOLVER NAMES libcusolver.so.12 cusolver HINTS "${cudart_folder}" NO_DEFAULT_PATH)
if(SPILLWAY_CUSOLVER)
  target_sources(spillway_cuda PRIVATE "${PROJECT_SOURCE_DIR}/kfac/eigh_cuda.cpp")
  target_link_libraries(spillway_cuda PRIVATE "${SPILLWAY_CUSOLVER}")
else()
  message(STATUS "No cuSOLVER: eigendecompositions on a card are LibTorch's")
endif()
# ddl's part of it.
find_path(SPILLWAY_NCCL_INCLUDE nccl.h
  HINTS "${SPILLWAY_TORCH}/../nvidia/nccl/include" "${SPILLWAY_CUDA_INCLUDE}" /usr/local/cuda/include NO_DEFAULT_PATH)
find_library(SPILLWAY_NCCL NAMES libnccl.so.2 nccl
  HINTS "${SPILLWAY_TORCH}/../nvidia/nccl/lib" "${cudart_folder}" /usr/local/cuda/lib64 NO_DEFAULT_PATH)
if(SPILLWAY_NCCL_INCLUDE AND SPILLWAY_NCCL)
  target_sources(spillway_cuda PRIVATE "${PROJECT_SOURCE_DIR}/ddl/nccl_cuda.cpp")
  target_include_directories(spillway_cuda SYSTEM PRIVATE "${SPILLWAY_NCCL_INCLUDE}")
  target_link_libraries(spillway_cuda PRIVATE "${SPILLWAY_NCCL}")
  get_filename_component(nccl_folder "${SPILLWAY_NCCL}" DIRECTORY)
  set_property(TARGET spillway_cuda APPEND PROPERTY BUILD_RPATH "${nccl_folder}")
  set_property(TARGET spillway_cuda APPEND PROPERTY INSTALL_RPATH "${nccl_folder}")
else()
  message(STATUS "No NCCL: collectives of tensors on cards are staged on the host")
endif()
install(TARGETS spillway_cuda LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
