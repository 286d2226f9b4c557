# spillway::torch: LibTorch as an imported target of our own. LibTorch's CMake package demands a full CUDA toolkit for the
# CUDA wheel; nothing here needs one.
#   SPILLWAY_TORCH   a folder with include/ and lib/: `torch` inside a Python environment, or an unpacked libtorch
set(SPILLWAY_TORCH "$ENV{SPILLWAY_TORCH}" CACHE PATH "torch folder of a wheel, or an unpacked libtorch (2.11)")
if(NOT SPILLWAY_TORCH)
  file(GLOB candidates "${SPILLWAY_CACHE_DIR}/torch-2.11.0*/lib/python3*/site-packages/torch")
  foreach(candidate IN LISTS candidates)
    if(NOT SPILLWAY_TORCH AND EXISTS "${candidate}/lib/libtorch_cpu.so")
      set(SPILLWAY_TORCH "${candidate}")
    endif()
  endforeach()
endif()
if(NOT EXISTS "${SPILLWAY_TORCH}/include/ATen/ATen.h" OR NOT EXISTS "${SPILLWAY_TORCH}/lib/libtorch_cpu.so")
  message(FATAL_ERROR "No LibTorch at SPILLWAY_TORCH='${SPILLWAY_TORCH}'. Run scripts/build, which installs it, or pass "
                      "-DSPILLWAY_TORCH=DIR, a folder with include/ATen and lib/libtorch_cpu.so (torch 2.11).")
endif()
file(STRINGS "${SPILLWAY_TORCH}/include/torch/headeronly/version.h" version_lines REGEX "TORCH_VERSION_(MAJOR|MINOR) ")
string(REGEX REPLACE ".*MAJOR ([0-9]+).*MINOR ([0-9]+).*" "\\1.\\2" SPILLWAY_TORCH_VERSION "${version_lines}")
if(NOT SPILLWAY_TORCH_VERSION VERSION_EQUAL "2.11")
  message(FATAL_ERROR "LibTorch at '${SPILLWAY_TORCH}' is '${SPILLWAY_TORCH_VERSION}'; Spillway is built and checked with 2.11.")
endif()
message(STATUS "LibTorch ${SPILLWAY_TORCH_VERSION}: ${SPILLWAY_TORCH}")

add_library(spillway::torch INTERFACE IMPORTED GLOBAL)
target_include_directories(spillway::torch SYSTEM INTERFACE
  "${SPILLWAY_TORCH}/include" "${SPILLWAY_TORCH}/include/torch/csrc/api/include")
# The CPU half alone: libtorch_cuda would cost every process half a second and 350 MB.
target_link_libraries(spillway::torch INTERFACE "${SPILLWAY_TORCH}/lib/libtorch_cpu.so" "${SPILLWAY_TORCH}/lib/libc10.so")
target_link_options(spillway::torch INTERFACE
  -Wl,--no-as-needed -Wl,--allow-shlib-undefined "-Wl,-rpath,${SPILLWAY_TORCH}/lib")
