# SPDX-License-Identifier: Apache-2.0
# Writes OUT, a header with the commit of the source at SOURCE ("-dirty" behind it: with changes), if that is another one
# than there. Run at every build: cmake -DGIT=... -DSOURCE=... -DOUT=... -P commit.cmake
set(commit unknown)
if(GIT)
  execute_process(COMMAND ${GIT} -C ${SOURCE} describe --always --dirty --abbrev=40 --exclude=*
    OUTPUT_VARIABLE described ERROR_QUIET OUTPUT_STRIP_TRAILING_WHITESPACE RESULT_VARIABLE failed)
  if(NOT failed)
    set(commit ${described})
  endif()
endif()
file(CONFIGURE OUTPUT ${OUT} CONTENT "#define ZEA_COMMIT \"${commit}\"\n")
