// SPDX-License-Identifier: Apache-2.0
#include <map>
#include <string>

#include "device_launcher.cuh"
#include "core/error.hpp"

namespace zea::detail {
namespace {

__global__ void probe() {}

/// Kokkos would end the process.
void check_device() {
  cudaFuncAttributes attributes;
  const cudaError_t code = cudaFuncGetAttributes(&attributes, probe);
  if (code != cudaSuccess)
    throw PlanError("run.device = \"cuda\": this build's Kokkos is not for this GPU (" +
                    std::string(cudaGetErrorString(code)) +
                    "); build with one that is, or with ZEA_ENABLE_CUDA_KERNELS=OFF");
}

/// Starts with the first kernel, on the device that is then current: Kokkos wants a GPU, and starts
/// once in a process. Ends with the process, before what it was made after.
class KokkosRuntime {
 public:
  KokkosRuntime() {
    check_device();
    int device = 0;
    cudaGetDevice(&device);
    Kokkos::initialize(
        Kokkos::InitializationSettings().set_device_id(device).set_disable_warnings(true));
  }
  ~KokkosRuntime() {
    spaces_.clear();
    Kokkos::finalize();
  }
  KokkosRuntime(const KokkosRuntime&) = delete;
  KokkosRuntime& operator=(const KokkosRuntime&) = delete;

  /// Made once: that takes memory, and waits for the device.
  const Kokkos::Cuda& space(cudaStream_t stream) {
    return spaces_.try_emplace(stream, stream).first->second;
  }

 private:
  std::map<cudaStream_t, Kokkos::Cuda> spaces_;
};

}  // namespace

bool has_device_kernels() {
  return true;
}

const Kokkos::Cuda& kokkos_space(void* stream) {
  static KokkosRuntime runtime;
  return runtime.space(static_cast<cudaStream_t>(stream));
}

}  // namespace zea::detail
