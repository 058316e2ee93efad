// SPDX-License-Identifier: Apache-2.0
#include <string>

#include "device_launcher.cuh"

namespace zea::detail {

bool has_device_kernels() {
  return true;
}

void check_launch() {
  const cudaError_t code = cudaGetLastError();
  if (code == cudaSuccess) return;
  const std::string text = cudaGetErrorString(code);
  if (code == cudaErrorNoKernelImageForDevice || code == cudaErrorUnsupportedPtxVersion)
    throw PlanError("run.device = \"cuda\": this build's kernels are not for this GPU (" + text +
                    "); build with CMAKE_CUDA_ARCHITECTURES set for it, or with "
                    "ZEA_ENABLE_CUDA_KERNELS=OFF");
  throw InternalError("a device kernel could not be launched: " + text);
}

}  // namespace zea::detail
