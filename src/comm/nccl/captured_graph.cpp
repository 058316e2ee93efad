// SPDX-License-Identifier: Apache-2.0
#include "comm/captured_graph.hpp"

#include "comm/nccl/nccl_communicator.hpp"

namespace zea {
namespace {

cudaGraph_t capture(cudaStream_t stream, const std::function<void()>& work) {
  // Other threads (the watchdog's, the loader's, a checkpoint's) go on as ever.
  check_cuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal),
             "cudaStreamBeginCapture");
  cudaGraph_t graph = nullptr;
  try {
    work();
  } catch (...) {
    if (cudaStreamEndCapture(stream, &graph) == cudaSuccess) cudaGraphDestroy(graph);
    cudaGetLastError();  // the first fault is told
    throw;
  }
  check_cuda(cudaStreamEndCapture(stream, &graph), "cudaStreamEndCapture");
  return graph;
}

}  // namespace

CapturedGraph::CapturedGraph(void* stream, const std::function<void()>& work) {
  const cudaGraph_t graph = capture(static_cast<cudaStream_t>(stream), work);
  cudaGraphExec_t launchable = nullptr;
  const cudaError_t made = cudaGraphInstantiateWithFlags(&launchable, graph, 0);
  cudaGraphDestroy(graph);
  check_cuda(made, "cudaGraphInstantiateWithFlags");
  launchable_ = launchable;
}

CapturedGraph::~CapturedGraph() {
  cudaGraphExecDestroy(static_cast<cudaGraphExec_t>(launchable_));
}

void CapturedGraph::launch(void* stream) const {
  check_cuda(
      cudaGraphLaunch(static_cast<cudaGraphExec_t>(launchable_), static_cast<cudaStream_t>(stream)),
      "cudaGraphLaunch");
}

}  // namespace zea
