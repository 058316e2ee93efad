# Builds for aarch64 by Debian's cross compiler, against the packages in ZEA_AARCH64/root and the wheels in
# ZEA_AARCH64/wheels; programs of that processor run under QEMU. tests/aarch64/run.sh makes both folders.
list(APPEND CMAKE_TRY_COMPILE_PLATFORM_VARIABLES ZEA_AARCH64)
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_LIBRARY_ARCHITECTURE aarch64-linux-gnu)
set(CMAKE_SYSROOT ${ZEA_AARCH64}/root)
set(CMAKE_C_COMPILER /usr/bin/aarch64-linux-gnu-gcc)
set(CMAKE_CXX_COMPILER /usr/bin/aarch64-linux-gnu-g++)
foreach(tool AR NM OBJCOPY RANLIB READELF STRIP)
  string(TOLOWER ${tool} name)
  set(CMAKE_${tool} /usr/bin/aarch64-linux-gnu-${name})
endforeach()
# Programs too, so that no wrapper of this machine's compiler says where MPI and HDF5 are.
foreach(kind PROGRAM LIBRARY INCLUDE PACKAGE)
  set(CMAKE_FIND_ROOT_PATH_MODE_${kind} ONLY)
endforeach()
set(CMAKE_CROSSCOMPILING_EMULATOR ${ZEA_AARCH64}/emulate)

set(libraries ${CMAKE_SYSROOT}/usr/lib/${CMAKE_LIBRARY_ARCHITECTURE})
set(MPI_CXX_SKIP_MPICXX ON)
set(MPI_mpi_LIBRARY ${libraries}/libmpi.so.40)
foreach(language C CXX)
  set(MPI_${language}_LIB_NAMES mpi)
  set(MPI_${language}_HEADER_DIR ${libraries}/openmpi/include)
endforeach()
set(ZEA_TORCH_ROOT ${ZEA_AARCH64}/wheels/torch)
# Debian's package of Kokkos names libraries of the machine that it is installed on.
set(CMAKE_DISABLE_FIND_PACKAGE_Kokkos ON)
