# zea_manual(PROGRAM TARGET-or-SCRIPT): its man page and bash completion, made from its own options (src/make_manual.py) and
# installed beside those of others.
find_package(Python3 3.9 COMPONENTS Interpreter)
if(NOT Python3_FOUND)
  message(STATUS "No Python: man pages and completions are not made")
endif()

function(zea_manual name program)
  if(NOT Python3_FOUND)
    return()
  endif()
  set(place ${program})
  if(TARGET ${program})
    set(place $<TARGET_FILE:${program}>)
  endif()
  set(folder ${PROJECT_BINARY_DIR}/manual)
  set(made ${folder}/man1/${name}.1 ${folder}/completions/${name})
  add_custom_command(OUTPUT ${made} VERBATIM DEPENDS ${program} ${PROJECT_SOURCE_DIR}/src/make_manual.py
    COMMAND ${CMAKE_COMMAND} -E env ASAN_OPTIONS=detect_leaks=0
      ${Python3_EXECUTABLE} -B ${PROJECT_SOURCE_DIR}/src/make_manual.py ${name} ${place} ${PROJECT_VERSION} ${folder})
  add_custom_target(manual_${name} ALL DEPENDS ${made})
  install(FILES ${folder}/man1/${name}.1 DESTINATION ${CMAKE_INSTALL_MANDIR}/man1 OPTIONAL)
  install(FILES ${folder}/completions/${name} DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions OPTIONAL)
endfunction()
