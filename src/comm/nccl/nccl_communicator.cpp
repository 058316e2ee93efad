// SPDX-License-Identifier: Apache-2.0
#include "comm/nccl/nccl_communicator.hpp"

#include <cstdlib>
#include <exception>
#include <limits>
#include <string>
#include <utility>

#include "comm/launch_order.hpp"
#include "comm/visible_gpus.hpp"
#include "core/error.hpp"

namespace zea {
namespace {

/// Thread blocks (one SM each) of a call that holds few SMs. NCCL's default is up to 32: six
/// pending calls could occupy the 132 SMs of an H100, so that the call a peer waits for could not
/// start.
constexpr int kFewBlocks = 8;

/// Throws on every rank if any has no device: one that went on alone would wait for ever.
void agree_on_devices(const Communicator& communicator) {
  constexpr int kNobody = std::numeric_limits<int>::max();
  const int mine = num_cuda_devices() > 0 ? kNobody : communicator.rank();
  int first_without = kNobody;
  check_mpi(MPI_Allreduce(&mine, &first_without, 1, MPI_INT, MPI_MIN, communicator.handle()),
            "MPI_Allreduce");
  if (first_without != kNobody)
    throw CommError("rank " + std::to_string(first_without) + " of communicator " +
                    communicator.name() +
                    " has no CUDA device: NCCL needs one per rank; run on the CPU, or with fewer "
                    "ranks per node");
}

/// Rank 0 makes the id; its failure, too, is told to all.
ncclUniqueId agree_on_id(const Communicator& communicator) {
  struct Invitation {
    ncclResult_t code;
    ncclUniqueId id;
  } invitation = {};
  if (communicator.rank() == 0) invitation.code = ncclGetUniqueId(&invitation.id);
  check_mpi(MPI_Bcast(&invitation, sizeof invitation, MPI_BYTE, 0, communicator.handle()),
            "MPI_Bcast");
  check_nccl(invitation.code, "ncclGetUniqueId");
  return invitation.id;
}

const Communicator& with_devices(const Communicator& communicator) {
  agree_on_devices(communicator);
  return communicator;
}

}  // namespace

void check_nccl(ncclResult_t code, const char* call) {
  if (code == ncclSuccess) return;
  const char* detail = ncclGetLastError(nullptr);
  throw CommError(std::string(call) + " failed: " + ncclGetErrorString(code) +
                  (detail && *detail ? std::string(" (") + detail + ")" : std::string()));
}

int num_cuda_devices() {
  int count = 0;
  if (cudaGetDeviceCount(&count) == cudaSuccess) return count;
  cudaGetLastError();  // forgets the failure: no driver is an ordinary case
  return 0;
}

std::vector<VisibleGpu> visible_gpus() {
  std::vector<VisibleGpu> gpus(num_cuda_devices());
  for (size_t index = 0; index < gpus.size(); ++index) {
    cudaDeviceProp properties;
    const int device = static_cast<int>(index);
    check_cuda(cudaGetDeviceProperties(&properties, device), "cudaGetDeviceProperties");
    char address[32] = {};
    check_cuda(cudaDeviceGetPCIBusId(address, sizeof address, device), "cudaDeviceGetPCIBusId");
    // Parts of one GPU (MIG) share its address and differ in their number.
    gpus[index].id = std::string(address) + " ";
    for (const char byte : properties.uuid.bytes) {
      constexpr const char* kDigits = "0123456789abcdef";
      gpus[index].id += {kDigits[(byte >> 4) & 15], kDigits[byte & 15]};
    }
    gpus[index].name = properties.name;
    gpus[index].is_near = is_near_device(address);
  }
  return gpus;
}

GpuMemory gpu_memory() {
  size_t free = 0, all = 0;
  check_cuda(cudaMemGetInfo(&free, &all), "cudaMemGetInfo");
  return {static_cast<int64_t>(free), static_cast<int64_t>(all)};
}

LaunchVersions launch_versions() {
  LaunchVersions versions{.built_nccl = NCCL_VERSION_CODE, .built_cuda = CUDART_VERSION};
  check_nccl(ncclGetVersion(&versions.nccl), "ncclGetVersion");
  check_cuda(cudaRuntimeGetVersion(&versions.cuda_runtime), "cudaRuntimeGetVersion");
  check_cuda(cudaDriverGetVersion(&versions.cuda_driver), "cudaDriverGetVersion");
  const char* order = std::getenv("NCCL_LAUNCH_ORDER_IMPLICIT");
  versions.in_program_order = order != nullptr && std::string(order) != "0";
  const char* mixing = std::getenv("NCCL_GRAPH_MIXING_SUPPORT");
  versions.mixes_graphs = mixing == nullptr || std::string(mixing) != "0";
  return versions;
}

NcclCommunicator::NcclCommunicator(const Communicator& communicator, bool limits_sms) {
  const ncclUniqueId id = agree_on_id(with_devices(communicator));
  check_cuda(cudaGetDevice(&device_), "cudaGetDevice");
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 26, 0)
  config.commName = communicator.name().c_str();
#endif
  if (limits_sms) config.maxCTAs = kFewBlocks;
  check_nccl(
      ncclCommInitRankConfig(&handle_, communicator.size(), id, communicator.rank(), &config),
      "ncclCommInitRankConfig");
}

NcclCommunicator::~NcclCommunicator() {
  if (std::uncaught_exceptions() > 0) abort();
  if (handle_ == nullptr) return;
  cudaStreamSynchronize(stream());
  ncclCommDestroy(handle_);
}

void NcclCommunicator::abort() {
  ncclComm_t given_up = nullptr;
  {
    const std::lock_guard lock(mutex_);
    given_up = std::exchange(handle_, nullptr);
  }
  if (given_up != nullptr) ncclCommAbort(given_up);
}

void NcclCommunicator::check_async() const {
  const std::lock_guard lock(mutex_);
  if (handle_ == nullptr) throw CommError("a communication over NCCL was given up");
  ncclResult_t state = ncclSuccess;
  check_nccl(ncclCommGetAsyncError(handle_, &state), "ncclCommGetAsyncError");
  if (state != ncclInProgress) check_nccl(state, "a communication over NCCL");
}

NcclGroup::~NcclGroup() {
  if (is_open_) ncclGroupEnd();
}

void NcclGroup::end() {
  is_open_ = false;
  check_nccl(ncclGroupEnd(), "ncclGroupEnd");
}

void check_cuda(cudaError_t code, const char* call) {
  if (code == cudaSuccess) return;
  throw CommError(std::string(call) + " failed: " + cudaGetErrorString(code));
}

// Communication goes first: a kernel of NCCL gets the next free SMs, where otherwise it would wait
// for thread blocks of GEMMs that were launched before it, and its peers with it.
CudaStream::CudaStream() {
  int lowest = 0, highest = 0;
  check_cuda(cudaDeviceGetStreamPriorityRange(&lowest, &highest),
             "cudaDeviceGetStreamPriorityRange");
  check_cuda(cudaStreamCreateWithPriority(&handle_, cudaStreamNonBlocking, highest),
             "cudaStreamCreateWithPriority");
}

CudaStream::~CudaStream() {
  cudaStreamDestroy(handle_);
}

CudaMemory::CudaMemory(size_t bytes) {
  check_cuda(cudaMalloc(reinterpret_cast<void**>(&data_), bytes), "cudaMalloc");
}

CudaMemory::~CudaMemory() {
  cudaFree(data_);
}

CudaEvents::~CudaEvents() {
  for (cudaEvent_t event : free_) cudaEventDestroy(event);
}

cudaEvent_t CudaEvents::take() {
  {
    const std::lock_guard lock(mutex_);
    if (!free_.empty()) {
      const cudaEvent_t event = free_.back();
      free_.pop_back();
      return event;
    }
  }
  cudaEvent_t event = nullptr;
  check_cuda(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "cudaEventCreateWithFlags");
  return event;
}

void CudaEvents::give_back(cudaEvent_t event) {
  const std::lock_guard lock(mutex_);
  free_.push_back(event);
}

void order_streams(CudaEvents& events, cudaStream_t earlier, cudaStream_t later) {
  const cudaEvent_t reached = events.take();
  check_cuda(cudaEventRecord(reached, earlier), "cudaEventRecord");
  check_cuda(cudaStreamWaitEvent(later, reached, 0), "cudaStreamWaitEvent");
  events.give_back(reached);
}

}  // namespace zea
