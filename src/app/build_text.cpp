// SPDX-License-Identifier: Apache-2.0
#include <ATen/Version.h>
#include <gnu/libc-version.h>

#include "app/answer.hpp"
#include "comm/world.hpp"
#include "commit.hpp"

namespace zea {

std::string version() {
  return ZEA_VERSION;
}

std::string version_text() {
  return "zea " + version() + "\n";
}

std::vector<BuildFact> build_facts() {
  const std::string sanitizers = ZEA_SANITIZE;
  return {{"commit", ZEA_COMMIT},
          {"C++ compiler", ZEA_COMPILER},
          {"build type",
           ZEA_BUILD_TYPE + (sanitizers.empty() ? "" : ", with sanitizers " + sanitizers)},
          {"kernels for", ZEA_ISA},
          {"libtorch", ZEA_TORCH_VERSION " in " ZEA_TORCH_ROOT "; its vector code here: " +
                           at::get_cpu_capability()},
          {"C library", std::string("glibc ") + gnu_get_libc_version()},
          {"MPI", mpi_library() + " (standard " ZEA_MPI_STANDARD ")"},
          {"HDF5", ZEA_HDF5_VERSION},
          {"Kokkos", ZEA_KOKKOS},
          {"NCCL", ZEA_NCCL},
          {"device kernels", ZEA_DEVICE_KERNELS}};
}

std::string build_text() {
  std::string text = version_text();
  for (const BuildFact& fact : build_facts()) text += fact.name + ": " + fact.value + "\n";
  return text;
}

}  // namespace zea
