# How Spillway's own targets are made.

# One precompiled header serves every target that sees LibTorch; REUSE_FROM demands that all use the same flags.
add_library(spillway_pch OBJECT "${CMAKE_CURRENT_LIST_DIR}/pch.cpp")
target_link_libraries(spillway_pch PRIVATE spillway::torch)
target_compile_features(spillway_pch PRIVATE cxx_std_20)
if(SPILLWAY_PCH)
  target_precompile_headers(spillway_pch PRIVATE "${CMAKE_CURRENT_LIST_DIR}/pch.h")
  # ccache needs it to look into a precompiled header.
  target_compile_options(spillway_pch PRIVATE $<$<CXX_COMPILER_ID:GNU>:-fpch-preprocess>)
  # GCC never writes the same precompiled header twice, so ccache would find nothing that another clone compiled. It takes
  # this text for the header's 700 MB (pch_external_checksum): all that decides what is in it.
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${CMAKE_CURRENT_LIST_DIR}/pch.h")
  file(SHA256 "${CMAKE_CURRENT_LIST_DIR}/pch.h" pch_hash)
  file(SHA256 "${SPILLWAY_TORCH}/include/torch/headeronly/version.h" torch_hash)
  string(TOUPPER "${CMAKE_BUILD_TYPE}" build_type)
  file(GENERATE OUTPUT "${CMAKE_CURRENT_BINARY_DIR}/CMakeFiles/spillway_pch.dir/cmake_pch.hxx.gch.sum" CONTENT
    "${pch_hash} ${torch_hash} ${SPILLWAY_TORCH} ${CMAKE_CXX_COMPILER_ID} ${CMAKE_CXX_COMPILER_VERSION} ${CMAKE_CXX_FLAGS} ${CMAKE_CXX_FLAGS_${build_type}}\n")
endif()

# Templates of LibTorch, JSON and the standard library are most of a compilation, so several files share one. A warning about
# types without linkage would be wrong then: it takes whatever a file includes for a header.
function(_spillway_unity target)
  if(SPILLWAY_UNITY)
    set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 6)
    target_compile_options(${target} PRIVATE $<$<CXX_COMPILER_ID:GNU>:-Wno-subobject-linkage>)
  endif()
endfunction()

function(_spillway_common target uses_torch)
  _spillway_unity(${target})
  target_compile_options(${target} PRIVATE -Wall -Wextra $<$<BOOL:${SPILLWAY_WERROR}>:-Werror>)
  if(uses_torch)
    target_link_libraries(${target} PUBLIC spillway::torch)
    if(SPILLWAY_PCH)
      # The header was compiled with -fPIC; an executable's default -fPIE would refuse it.
      set_target_properties(${target} PROPERTIES POSITION_INDEPENDENT_CODE OFF)
      target_compile_options(${target} PRIVATE -fPIC)
      target_precompile_headers(${target} REUSE_FROM spillway_pch)
      target_compile_options(${target} PRIVATE $<$<CXX_COMPILER_ID:GNU>:-fpch-preprocess>)
    endif()
  endif()
endfunction()

# spillway_library(NAME [TORCH] SOURCES … [HEADERS …] [PUBLIC dependencies…] [PRIVATE dependencies…])
# makes the static library spillway_NAME, alias spillway::NAME. HEADERS are its public ones: they are installed, and they
# include no others.
function(spillway_library name)
  cmake_parse_arguments(arg "TORCH" "" "SOURCES;HEADERS;PUBLIC;PRIVATE" ${ARGN})
  add_library(spillway_${name} STATIC ${arg_SOURCES})
  add_library(spillway::${name} ALIAS spillway_${name})
  set_target_properties(spillway_${name} PROPERTIES EXPORT_NAME ${name})
  target_compile_features(spillway_${name} PUBLIC cxx_std_20)
  # Of every library, so that any of them leads users to the folder of headers.
  target_sources(spillway_${name} PUBLIC FILE_SET HEADERS BASE_DIRS "${PROJECT_SOURCE_DIR}" FILES ${arg_HEADERS})
  target_include_directories(spillway_${name} PUBLIC
    $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}> $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}/spillway>)
  target_link_libraries(spillway_${name} PUBLIC ${arg_PUBLIC} PRIVATE ${arg_PRIVATE})
  _spillway_common(spillway_${name} "${arg_TORCH}")
  set_property(GLOBAL APPEND PROPERTY SPILLWAY_INSTALLED spillway_${name})
endfunction()

# spillway_room(NAME targets…) makes spillway::NAME stand for the libraries of a room's folders.
function(spillway_room name)
  add_library(spillway_${name} INTERFACE)
  add_library(spillway::${name} ALIAS spillway_${name})
  set_target_properties(spillway_${name} PROPERTIES EXPORT_NAME ${name})
  list(TRANSFORM ARGN PREPEND spillway::)
  target_link_libraries(spillway_${name} INTERFACE ${ARGN})
  set_property(GLOBAL APPEND PROPERTY SPILLWAY_INSTALLED spillway_${name})
endfunction()

# spillway_parts(NAME [TORCH] SOURCES … LIBRARIES …) makes a static library that programs and tests share and nobody installs.
function(spillway_parts name)
  cmake_parse_arguments(arg "TORCH" "" "SOURCES;LIBRARIES" ${ARGN})
  add_library(${name} STATIC ${arg_SOURCES})
  target_include_directories(${name} PUBLIC "${PROJECT_SOURCE_DIR}")
  target_link_libraries(${name} PUBLIC ${arg_LIBRARIES})
  _spillway_common(${name} "${arg_TORCH}")
endfunction()

# spillway_embed(TARGET HEADER FILE…) makes the texts of files constants of TARGET, in the header that sources include as
# HEADER: the text of gloo_worker.py is kGlooWorkerPy.
function(spillway_embed target header)
  set(content "// Made by CMake.\n#pragma once\n#include <string_view>\n\nnamespace spillway {\n\n")
  foreach(file ${ARGN})
    file(READ "${file}" text)
    string(REGEX REPLACE "[_.]" ";" words "${file}")
    set(name k)
    foreach(word ${words})
      string(SUBSTRING "${word}" 0 1 first)
      string(SUBSTRING "${word}" 1 -1 rest)
      string(TOUPPER "${first}" first)
      string(APPEND name "${first}${rest}")
    endforeach()
    string(APPEND content "inline constexpr std::string_view ${name} = R\"text(${text})text\";\n\n")
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${file}")
  endforeach()
  file(CONFIGURE OUTPUT "${CMAKE_CURRENT_BINARY_DIR}/embedded/${header}" CONTENT "${content}}  // namespace spillway\n" @ONLY)
  target_include_directories(${target} PRIVATE "${CMAKE_CURRENT_BINARY_DIR}/embedded")
endfunction()

# spillway_program(NAME [TORCH] SOURCES … LIBRARIES …) makes an executable in build/bin.
function(spillway_program name)
  cmake_parse_arguments(arg "TORCH" "" "SOURCES;LIBRARIES" ${ARGN})
  add_executable(${name} ${arg_SOURCES})
  target_link_libraries(${name} PRIVATE ${arg_LIBRARIES})
  _spillway_common(${name} "${arg_TORCH}")
endfunction()

set(SPILLWAY_TIMEOUT_FACTOR 1 CACHE STRING "Times as long as usual before a test counts as hung; sanitizers are slow")

# spillway_limit(SECONDS TEST): the test counts as hung after so long, under sanitizers SPILLWAY_TIMEOUT_FACTOR times as long.
# The longest take 100 s alone, and may have a quarter of a core beside other work.
function(spillway_limit seconds test)
  math(EXPR limit "${seconds} * ${SPILLWAY_TIMEOUT_FACTOR}")
  set_tests_properties(${test} PROPERTIES TIMEOUT ${limit})
endfunction()

# spillway_test(NAME [TORCH] [ALONE] SOURCES … LIBRARIES … [RANKS 2 3 …] [THREADS n] [LABELS …] [DEFINITIONS …] [TIMEOUT s])
# A GoogleTest program. ALONE: its files have helpers of the same names, so each is compiled alone, as are all files that do
# without LibTorch. With RANKS it runs once under mpirun for each count (its main must start MPI). THREADS: what it looks at
# depends on how kernels share their work among threads, so it has that many, where scripts/test gives one to each test.
function(spillway_test name)
  cmake_parse_arguments(arg "TORCH;ALONE" "TIMEOUT;THREADS" "SOURCES;LIBRARIES;RANKS;LABELS;DEFINITIONS" ${ARGN})
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 900)
  endif()
  add_executable(${name} ${arg_SOURCES})
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/tests")
  target_include_directories(${name} PRIVATE "${PROJECT_SOURCE_DIR}")
  target_compile_definitions(${name} PRIVATE ${arg_DEFINITIONS})
  target_link_libraries(${name} PRIVATE ${arg_LIBRARIES} GTest::gtest)
  if(NOT arg_RANKS)
    target_link_libraries(${name} PRIVATE GTest::gtest_main)
    add_test(NAME ${name} COMMAND ${name})
    set_tests_properties(${name} PROPERTIES LABELS "cpu;${arg_LABELS}")
    if(arg_THREADS)
      set_tests_properties(${name} PROPERTIES PROCESSORS ${arg_THREADS} ENVIRONMENT "OMP_NUM_THREADS=${arg_THREADS}")
    endif()
    spillway_limit(${arg_TIMEOUT} ${name})
  endif()
  foreach(ranks ${arg_RANKS})
    add_test(NAME ${name}_${ranks}_ranks
      COMMAND ${SPILLWAY_MPIRUN} -np ${ranks} --allow-run-as-root --oversubscribe --bind-to none $<TARGET_FILE:${name}>)
    set_tests_properties(${name}_${ranks}_ranks PROPERTIES LABELS "cpu;mpi;${arg_LABELS}" PROCESSORS ${ranks})
    spillway_limit(${arg_TIMEOUT} ${name}_${ranks}_ranks)
  endforeach()
  _spillway_common(${name} "${arg_TORCH}")
  if(arg_ALONE OR NOT arg_TORCH)
    set_target_properties(${name} PROPERTIES UNITY_BUILD OFF)
  endif()
endfunction()
