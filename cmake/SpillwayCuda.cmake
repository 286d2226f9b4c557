# libspillway_cuda.so: everything that needs CUDA, loaded by name when a program asks for a GPU. It is built from the headers
# and libraries that come with torch's wheel (or a toolkit of the same version). Each part is compiled and linked on trial
# first, so what is missing leaves that part out with a line that says so, and never breaks the build.
set(site_packages "${SPILLWAY_TORCH}/..")
find_path(SPILLWAY_CUDA_INCLUDE cuda_runtime_api.h
  HINTS "${site_packages}/nvidia/cu13/include" /usr/local/cuda/include NO_DEFAULT_PATH)
find_library(SPILLWAY_CUDART NAMES libcudart.so.13 cudart
  HINTS "${site_packages}/nvidia/cu13/lib" /usr/local/cuda/lib64 NO_DEFAULT_PATH)
# cuda_runtime_api.h includes crt/, which torch's CUDA 13 wheels lack. A toolkit has it, and so does triton, which torch's
# wheel requires on Linux; triton's is older, but these declarations did not change.
find_path(SPILLWAY_CUDA_CRT crt/host_defines.h
  HINTS "${SPILLWAY_CUDA_INCLUDE}" /usr/local/cuda/include "${site_packages}/triton/backends/nvidia/include" NO_DEFAULT_PATH)
if(NOT SPILLWAY_CUDA_INCLUDE OR NOT SPILLWAY_CUDART OR NOT SPILLWAY_CUDA_CRT OR NOT EXISTS "${SPILLWAY_TORCH}/lib/libtorch_cuda.so"
   OR NOT EXISTS "${SPILLWAY_TORCH}/include/c10/cuda/impl/cuda_cmake_macros.h")
  message(STATUS "No CUDA headers or libraries beside LibTorch: libspillway_cuda is left out")
  return()
endif()
# Only crt/ is taken from there: other headers of that folder may be of another version.
set(crt_folder "${PROJECT_BINARY_DIR}/cuda_crt")
file(MAKE_DIRECTORY "${crt_folder}")
file(CREATE_LINK "${SPILLWAY_CUDA_CRT}/crt" "${crt_folder}/crt" SYMBOLIC)
# The wheels lack nv/target as well, which cuSOLVER's and NCCL's headers come to include.
set(cuda_includes "${SPILLWAY_CUDA_INCLUDE}" "${crt_folder}" "${PROJECT_SOURCE_DIR}/cmake/host_compiler")
set(cuda_libraries "${SPILLWAY_TORCH}/lib/libc10_cuda.so" "${SPILLWAY_CUDART}")

# _spillway_cuda_compiles(RESULT SOURCE INCLUDES LIBRARIES): tries a program that includes what a part of the library needs.
function(_spillway_cuda_compiles result source includes libraries)
  include(CheckCXXSourceCompiles)
  set(CMAKE_REQUIRED_FLAGS -std=c++20)
  set(CMAKE_REQUIRED_INCLUDES "${includes};${SPILLWAY_TORCH}/include")
  set(CMAKE_REQUIRED_LIBRARIES "${libraries};${SPILLWAY_TORCH}/lib/libc10.so")
  set(CMAKE_REQUIRED_LINK_OPTIONS -Wl,--allow-shlib-undefined)
  check_cxx_source_compiles("${source}" ${result})
  set(${result} "${${result}}" PARENT_SCOPE)
endfunction()

_spillway_cuda_compiles(SPILLWAY_CUDA_COMPILES "#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAStream.h>
int main() { return int(cudaDeviceSynchronize()); }" "${cuda_includes}" "${cuda_libraries}")
if(NOT SPILLWAY_CUDA_COMPILES)
  message(STATUS "A program with the CUDA headers in ${SPILLWAY_CUDA_INCLUDE} and ${SPILLWAY_CUDA_CRT} does not compile: libspillway_cuda is left out")
  return()
endif()
message(STATUS "CUDA for libspillway_cuda: ${SPILLWAY_CUDA_INCLUDE}")

get_filename_component(cudart_folder "${SPILLWAY_CUDART}" DIRECTORY)
add_library(spillway_cuda SHARED allocator_cuda.cpp driver_cuda.cpp managed_cuda.cpp pinned_range_cuda.cpp timeline_cuda.cpp)
target_compile_features(spillway_cuda PRIVATE cxx_std_20)
target_compile_options(spillway_cuda PRIVATE -Wall -Wextra $<$<BOOL:${SPILLWAY_WERROR}>:-Werror>)
set_target_properties(spillway_cuda PROPERTIES
  CXX_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON LIBRARY_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/lib"
  BUILD_RPATH "${SPILLWAY_TORCH}/lib;${cudart_folder}" INSTALL_RPATH "${SPILLWAY_TORCH}/lib;${cudart_folder}")
target_include_directories(spillway_cuda PRIVATE "${PROJECT_SOURCE_DIR}")
target_include_directories(spillway_cuda SYSTEM PRIVATE ${cuda_includes})
# Its own copies of what it uses of core stay inside; what has state is reached through the interfaces alone.
target_link_libraries(spillway_cuda PRIVATE spillway::core spillway::torch "${SPILLWAY_TORCH}/lib/libtorch_cuda.so" ${cuda_libraries})
target_link_options(spillway_cuda PRIVATE -Wl,--exclude-libs,ALL -Wl,--no-undefined)
# kfac's part of it.
find_library(SPILLWAY_CUSOLVER NAMES libcusolver.so.12 cusolver HINTS "${cudart_folder}" NO_DEFAULT_PATH)
if(SPILLWAY_CUSOLVER)
  _spillway_cuda_compiles(SPILLWAY_CUSOLVER_COMPILES "#include <cusolverDn.h>
int main() { cusolverDnHandle_t handle; return int(cusolverDnCreate(&handle)); }" "${cuda_includes}" "${SPILLWAY_CUSOLVER}")
endif()
if(SPILLWAY_CUSOLVER_COMPILES)
  target_sources(spillway_cuda PRIVATE "${PROJECT_SOURCE_DIR}/kfac/inverse/eigh_cuda.cpp")
  target_link_libraries(spillway_cuda PRIVATE "${SPILLWAY_CUSOLVER}")
else()
  message(STATUS "No cuSOLVER that compiles: eigendecompositions on a GPU are LibTorch's")
endif()
# ddl's part of it.
find_path(SPILLWAY_NCCL_INCLUDE nccl.h
  HINTS "${site_packages}/nvidia/nccl/include" "${SPILLWAY_CUDA_INCLUDE}" /usr/local/cuda/include NO_DEFAULT_PATH)
find_library(SPILLWAY_NCCL NAMES libnccl.so.2 nccl
  HINTS "${site_packages}/nvidia/nccl/lib" "${cudart_folder}" /usr/local/cuda/lib64 NO_DEFAULT_PATH)
if(SPILLWAY_NCCL_INCLUDE AND SPILLWAY_NCCL)
  _spillway_cuda_compiles(SPILLWAY_NCCL_COMPILES "#include <nccl.h>
int main() { int version; return int(ncclGetVersion(&version)); }" "${cuda_includes};${SPILLWAY_NCCL_INCLUDE}" "${SPILLWAY_NCCL}")
endif()
if(SPILLWAY_NCCL_COMPILES)
  target_sources(spillway_cuda PRIVATE "${PROJECT_SOURCE_DIR}/ddl/nccl/nccl_cuda.cpp")
  target_include_directories(spillway_cuda SYSTEM PRIVATE "${SPILLWAY_NCCL_INCLUDE}")
  target_link_libraries(spillway_cuda PRIVATE "${SPILLWAY_NCCL}")
  get_filename_component(nccl_folder "${SPILLWAY_NCCL}" DIRECTORY)
  set_property(TARGET spillway_cuda APPEND PROPERTY BUILD_RPATH "${nccl_folder}")
  set_property(TARGET spillway_cuda APPEND PROPERTY INSTALL_RPATH "${nccl_folder}")
else()
  message(STATUS "No NCCL that compiles: collectives of tensors on GPUs are staged on the host")
endif()
install(TARGETS spillway_cuda LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
