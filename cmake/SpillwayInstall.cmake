# `cmake --install build --prefix DIR`: libraries, the public headers below include/spillway, and a package for find_package(spillway).
include(CMakePackageConfigHelpers)
get_property(installed GLOBAL PROPERTY SPILLWAY_INSTALLED)
install(TARGETS ${installed} EXPORT spillwayTargets FILE_SET HEADERS DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/spillway)
foreach(program spillway ddlrun)
  if(TARGET ${program})
    set_target_properties(${program} PROPERTIES INSTALL_RPATH_USE_LINK_PATH ON  # LibTorch stays where it is
      INSTALL_RPATH "\$ORIGIN/../${CMAKE_INSTALL_LIBDIR}")
    install(TARGETS ${program})
  endif()
endforeach()
install(EXPORT spillwayTargets NAMESPACE spillway:: DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/spillway)
configure_package_config_file("${PROJECT_SOURCE_DIR}/cmake/spillwayConfig.cmake.in" "${CMAKE_BINARY_DIR}/spillwayConfig.cmake"
  INSTALL_DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/spillway)
write_basic_package_version_file("${CMAKE_BINARY_DIR}/spillwayConfigVersion.cmake" COMPATIBILITY SameMinorVersion)
install(FILES "${CMAKE_BINARY_DIR}/spillwayConfig.cmake" "${CMAKE_BINARY_DIR}/spillwayConfigVersion.cmake"
  "${PROJECT_SOURCE_DIR}/cmake/SpillwayTorch.cmake" DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/spillway)
