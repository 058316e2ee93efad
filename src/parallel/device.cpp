// SPDX-License-Identifier: Apache-2.0
#include "parallel/device.hpp"

#include <ATen/Context.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <dlfcn.h>

#include <cstdlib>
#include <set>

#include "core/error.hpp"
#include "kernels/launch.hpp"

namespace zea {
namespace {

/// Turns on expandable segments in libtorch's allocator, against fragmentation: rows differ in
/// length from step to step. A fragmented allocator that runs out of memory frees blocks with
/// cudaFree, which waits for all kernels, including NCCL's.
void let_segments_grow() {
  if (std::getenv("PYTORCH_CUDA_ALLOC_CONF") == nullptr)
    setenv("PYTORCH_ALLOC_CONF", "expandable_segments:True", 0);
}

/// Registers libtorch's CUDA kernels; the library stays for the life of the process.
void load_torch_cuda() {
  let_segments_grow();
  if (dlopen("libtorch_cuda.so", RTLD_NOW | RTLD_GLOBAL) != nullptr) return;
  throw PlanError("run.device = \"cuda\": libtorch's CUDA part cannot be loaded (" +
                  std::string(dlerror()) +
                  "); install the full torch wheel (jobs/setup.sh --tests does), or set run.device "
                  "to \"cpu\"");
}

const c10::impl::DeviceGuardImplInterface& cuda() {
  return *c10::impl::getDeviceGuardImpl(at::kCUDA);
}

/// libtorch's stream at the time of the call.
void* compute_stream() {
  return stream_handle(cuda().getStream(cuda().getDevice()));
}

/// libtorch takes kernels that give the same bits each time, and throws where it has none; cuBLAS
/// promises that for a workspace of this form alone.
void compute_deterministically() {
  setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8", 0);
  at::globalContext().setDeterministicAlgorithms(true, false);
  // Every tensor is written before it is read; without this, libtorch would fill new ones.
  at::globalContext().setDeterministicFillUninitializedMemory(false);
}

}  // namespace

std::vector<VisibleGpu> find_gpus(DeviceKind kind) {
  if (kind == DeviceKind::Cpu) return {};
  if (!has_nccl())
    throw PlanError(
        "run.device = \"cuda\": this build has no NCCL; build with ZEA_ENABLE_NCCL=ON where nccl.h "
        "and the CUDA runtime are found, or set run.device to \"cpu\"");
  load_torch_cuda();
  return visible_gpus();
}

at::Device open_device(const RunOptions& run,
                       const std::vector<std::vector<VisibleGpu>>& seen_on_node, int local_rank) {
  if (run.device == DeviceKind::Cpu) return at::kCPU;
  const int index = deal_gpus(seen_on_node, run.ranks_per_gpu)[local_rank];
  if (index < 0) {
    std::set<std::string> different;
    for (const std::vector<VisibleGpu>& seen : seen_on_node)
      for (const VisibleGpu& gpu : seen) different.insert(gpu.id);
    throw PlanError("run.device = \"cuda\": " + std::to_string(seen_on_node.size()) +
                    " ranks on this node, but it shows " + std::to_string(different.size()) +
                    " GPUs, and to one rank " + std::to_string(seen_on_node[local_rank].size()) +
                    " that others have; start one rank per GPU, set run.ranks_per_gpu (now " +
                    std::to_string(run.ranks_per_gpu) +
                    ") to try the layout on fewer, or run.device to \"cpu\"");
  }
  if (run.ranks_per_gpu > 1) set_nccl_host_id(local_rank);
  if (run.deterministic) compute_deterministically();
  const at::Device device(at::kCUDA, static_cast<c10::DeviceIndex>(index));
  cuda().setDevice(device);
  return device;
}

at::Device open_device(const RunOptions& run) {
  return open_device(run, {find_gpus(run.device)}, 0);
}

MakeCollectives collectives_of(at::Device device) {
  if (device.is_cpu()) return make_host_collectives;
  return [](const Communicator& communicator) {
    // A rank alone never communicates, and NCCL takes memory for every communicator.
    return communicator.size() == 1 ? make_mpi_collectives(communicator)
                                    : make_nccl_collectives(communicator, compute_stream);
  };
}

}  // namespace zea
