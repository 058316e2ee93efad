# A tree that can be moved: programs look for libraries in lib/zea beside them. In DT_RPATH, since that also holds for what these
# libraries need themselves. zea itself is started by a script, which finds libtorch and MPI: those of a site are its own.
set(zea_libraries ${CMAKE_INSTALL_LIBDIR}/zea)
set(zea_programs ${CMAKE_INSTALL_LIBEXECDIR}/zea)

# zea_movable(TARGET FOLDER [LIBRARY ...]): as it is installed into that folder. In the build tree it also names the folders of what
# it is linked to; CMake does so for all but libraries below the source, as wheels of .venv are, which are named here. (With CMake's
# own change of paths at installation the list would end in an empty element, the working directory: a library there would be run.)
function(zea_movable target folder)
  file(RELATIVE_PATH libraries /${folder} /${zea_libraries})
  set(search "$ORIGIN/${libraries}")
  foreach(library ${ARGN})
    if(library)
      cmake_path(GET library PARENT_PATH library_folder)
      list(APPEND search ${library_folder})
    endif()
  endforeach()
  set_target_properties(${target} PROPERTIES BUILD_WITH_INSTALL_RPATH ON INSTALL_RPATH "${search}" INSTALL_RPATH_USE_LINK_PATH ON)
  target_link_options(${target} PRIVATE -Wl,--disable-new-dtags)
endfunction()
# zea_forget_build(TARGET FOLDER [OPTION of install(CODE) ...]): comes after install(TARGETS); the installed file searches the folder of
# its tree alone.
function(zea_forget_build target folder)
  file(RELATIVE_PATH libraries /${folder} /${zea_libraries})
  install(CODE "file(RPATH_SET FILE \"\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/${folder}/$<TARGET_FILE_NAME:${target}>\"
    NEW_RPATH \"$ORIGIN/${libraries}\")" ${ARGN})
endfunction()

# Libraries that every system has, and those that come from elsewhere: libtorch, CUDA, MPI (jobs/bundle_mpi.sh).
set(zea_not_beside
  "^ld-linux" "^lib(c|m|dl|rt|util|pthread|resolv|gcc_s|stdc\\+\\+|gomp|[at]san|ubsan)\\.so"
  "^lib(torch|c10|nccl|nv|mpi|open-|cu(da|blas|dnn|fft|rand|solver|sparse|pti))")
install(RUNTIME_DEPENDENCY_SET zea_needs PRE_EXCLUDE_REGEXES ${zea_not_beside}
  LIBRARY DESTINATION ${zea_libraries} RUNTIME DESTINATION ${zea_programs} FRAMEWORK DESTINATION ${zea_libraries})

# zea_start(): bin/zea.
function(zea_start)
  file(RELATIVE_PATH program /${CMAKE_INSTALL_BINDIR} /${zea_programs}/zea)
  set(bundled_mpi ${zea_programs}/openmpi)
  list(GET MPI_CXX_LIBRARIES 0 mpi_library)
  get_filename_component(mpi_folder ${mpi_library} DIRECTORY)
  configure_file(${CMAKE_CURRENT_SOURCE_DIR}/start_zea.sh.in start_zea.sh @ONLY)
  install(PROGRAMS ${CMAKE_CURRENT_BINARY_DIR}/start_zea.sh DESTINATION ${CMAKE_INSTALL_BINDIR} RENAME zea)
  file(RELATIVE_PATH from_package /${CMAKE_INSTALL_LIBDIR}/cmake/zea /${CMAKE_INSTALL_BINDIR}/zea)
  file(WRITE ${PROJECT_BINARY_DIR}/zeaConfig.cmake
    "include(\"\${CMAKE_CURRENT_LIST_DIR}/zeaTools.cmake\")\n"
    "get_filename_component(zea_place \"\${CMAKE_CURRENT_LIST_DIR}/${from_package}\" ABSOLUTE)\n"
    "if(NOT TARGET zea::zea)\n  add_executable(zea::zea IMPORTED)\n"
    "  set_target_properties(zea::zea PROPERTIES IMPORTED_LOCATION \"\${zea_place}\")\nendif()\n")
endfunction()
