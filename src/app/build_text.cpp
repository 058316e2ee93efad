// SPDX-License-Identifier: Apache-2.0
#include "app/answer.hpp"

#include <ATen/Version.h>

#include "comm/world.hpp"

namespace zea {

std::string version() {
  return ZEA_VERSION;
}

std::string version_text() {
  return "zea " + version() + "\n";
}

std::string build_text() {
  const std::string sanitizers = ZEA_SANITIZE;
  return version_text() + "C++ compiler: " ZEA_COMPILER "\nbuild type: " ZEA_BUILD_TYPE +
         (sanitizers.empty() ? "" : ", with sanitizers " + sanitizers) +
         "\nkernels for: " ZEA_ISA "\nlibtorch: " ZEA_TORCH_VERSION " in " ZEA_TORCH_ROOT
         "; its vector code here: " +
         at::get_cpu_capability() + "\nMPI: " + mpi_library() +
         " (standard " ZEA_MPI_STANDARD ")\nHDF5: " ZEA_HDF5_VERSION "\nKokkos: " ZEA_KOKKOS
         "\nNCCL: " ZEA_NCCL "\ndevice kernels: " ZEA_DEVICE_KERNELS "\n";
}

}  // namespace zea
