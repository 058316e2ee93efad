# Row functors compiled for devices, where a CUDA compiler is found, which must be of libtorch's CUDA; else one file
# that says there are none. A library of objects of its own: nvcc gets none of the C++ flags, and programs are linked as C++.
set(device_kernels none)
# Launched by Kokkos, where it is found with CUDA: of 4.3, the first to take the device from a stream, and without separate
# linking of device code, which links programs by nvcc. Kernels are then for its GPUs. (HIP: there is no such device here.)
set(device_launcher cuda)
if(Kokkos_ENABLE_CUDA AND Kokkos_VERSION VERSION_GREATER_EQUAL 4.3 AND NOT Kokkos_ENABLE_CUDA_RELOCATABLE_DEVICE_CODE)
  set(device_launcher kokkos)
  set(CMAKE_CUDA_ARCHITECTURES ${Kokkos_CUDA_ARCHITECTURES})
endif()
if(ZEA_ENABLE_CUDA_KERNELS AND ZEA_NCCL_COMPILES)
  find_program(ZEA_NVCC nvcc HINTS $ENV{CUDACXX} PATHS $ENV{CUDA_HOME}/bin /usr/local/cuda/bin
    ${ZEA_TORCH_ROOT}/../nvidia/cu${ZEA_CUDART_MAJOR}/bin)  # its wheel's, beside libtorch's
  if(ZEA_NVCC AND NOT CMAKE_CUDA_COMPILER AND NOT DEFINED ENV{CUDACXX})
    set(ENV{CUDACXX} ${ZEA_NVCC})
    # A wheel's libraries are in lib, where its nvcc, which looks into lib64, has CMake's checks fail.
    cmake_path(GET ZEA_NVCC PARENT_PATH nvcc_folder)
    set(library_path ${nvcc_folder}/../lib $ENV{LIBRARY_PATH})  # no empty element, which were the working directory
    list(JOIN library_path ":" library_path)
    set(ENV{LIBRARY_PATH} "${library_path}")
  endif()
  if(ZEA_NVCC OR CMAKE_CUDA_COMPILER OR DEFINED ENV{CUDACXX})
    include(CheckLanguage)
    set(CMAKE_CUDA_ARCHITECTURES "80;90" CACHE STRING "GPUs that the device kernels are compiled for")
    check_language(CUDA)
  endif()
  if(CMAKE_CUDA_COMPILER)
    enable_language(CUDA)
    if(CMAKE_CUDA_COMPILER_VERSION VERSION_LESS 12 OR NOT CMAKE_CUDA_COMPILER_VERSION MATCHES "^${ZEA_CUDART_MAJOR}[.]")
      message(FATAL_ERROR "nvcc ${CMAKE_CUDA_COMPILER_VERSION} (${CMAKE_CUDA_COMPILER}), but libtorch and the CUDA runtime are of "
        "CUDA ${ZEA_CUDART_MAJOR}: device kernels need an nvcc of their major version, 12 or newer; name one by CUDACXX, or "
        "another libtorch by Torch_DIR, or set ZEA_ENABLE_CUDA_KERNELS=OFF: GPUs then take libtorch's operations")
    endif()
    list(JOIN CMAKE_CUDA_ARCHITECTURES ", sm_" device_kernels)
    set(device_kernels "CUDA ${CMAKE_CUDA_COMPILER_VERSION} for sm_${device_kernels}")
    if(device_launcher STREQUAL kokkos)
      string(APPEND device_kernels ", launched by Kokkos")
    endif()
  endif()
endif()
message(STATUS "Device kernels: ${device_kernels}")
set(ZEA_DEVICE_KERNELS ${device_kernels} PARENT_SCOPE)

if(device_kernels MATCHES "^none")
  target_sources(zea_engine PRIVATE device/no_device_kernels.cpp)
  set_source_files_properties(device/no_device_kernels.cpp TARGET_DIRECTORY zea_engine PROPERTIES
    SKIP_PRECOMPILE_HEADERS ON)
  return()
endif()
add_library(zea_device_kernels OBJECT
  device/flat_kernels.cu
  device/logit_kernels.cu
  device/row_kernels.cu
)
if(device_launcher STREQUAL kokkos)
  target_sources(zea_device_kernels PRIVATE device/kokkos/kokkos_space.cu)
  target_compile_options(zea_device_kernels PRIVATE --extended-lambda)
  target_link_libraries(zea_device_kernels PRIVATE Kokkos::kokkoscore)
  # Programs are linked without nvcc's options, by the C++ compiler; and without the toolkit's runtime, see below. With Kokkos
  # they need the driver (libcuda.so.1) to start, which those of our own launcher do not.
  set_property(TARGET Kokkos::kokkoscore PROPERTY INTERFACE_LINK_OPTIONS)
  set_property(TARGET CUDA::cudart PROPERTY IMPORTED_LOCATION ${ZEA_CUDART_LIBRARY})
  target_link_libraries(zea_engine INTERFACE $<LINK_ONLY:Kokkos::kokkoscore>)
else()
  target_sources(zea_device_kernels PRIVATE device/cuda/check_launch.cu)
endif()
set_target_properties(zea_device_kernels PROPERTIES CUDA_STANDARD 20 CUDA_STANDARD_REQUIRED ON
  CUDA_RUNTIME_LIBRARY None POSITION_INDEPENDENT_CODE ON)
target_include_directories(zea_device_kernels PRIVATE ${PROJECT_SOURCE_DIR}/src
  ${CMAKE_CURRENT_SOURCE_DIR}/device/${device_launcher})
# std::bit_cast is constexpr, and no more, to nvcc.
target_compile_options(zea_device_kernels PRIVATE --expt-relaxed-constexpr -Xcompiler=-Wall,-Wextra
  $<$<BOOL:${ZEA_WERROR}>:-Werror=all-warnings>)
if(CMAKE_CUDA_COMPILER_VERSION VERSION_GREATER_EQUAL 13)  # whose drivers all decompress it
  target_compile_options(zea_device_kernels PRIVATE --compress-mode=size)
endif()
target_sources(zea_engine PRIVATE $<TARGET_OBJECTS:zea_device_kernels>)
set_target_properties(zea_engine PROPERTIES CUDA_ARCHITECTURES "${CMAKE_CUDA_ARCHITECTURES}")  # CMake wants them here, too
# The runtime of the wheels, as NCCL has it: a process can have only one.
target_link_libraries(zea_engine PRIVATE ${ZEA_CUDART_LIBRARY})
