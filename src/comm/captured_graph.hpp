// SPDX-License-Identifier: Apache-2.0
// A CUDA graph: work that was captured from streams once and is launched as a whole any number of
// times. It reads and writes the addresses of the capture.
#pragma once

#include <functional>

namespace zea {

class CapturedGraph {
 public:
  /// Captures the work that `work` puts into `stream`, which must not be the default stream, and
  /// into streams that wait for it and that it waits for in the end. Nothing is executed. Meanwhile
  /// the calling thread may neither wait for the device nor query it. Throws CommError with CUDA's
  /// own text, and the exceptions of `work`.
  CapturedGraph(void* stream, const std::function<void()>& work);
  CapturedGraph(const CapturedGraph&) = delete;
  CapturedGraph& operator=(const CapturedGraph&) = delete;
  /// Launched work completes on its own (cudaGraphExecDestroy).
  ~CapturedGraph();

  /// Launches the graph after the present work of `stream`. If it communicates, all ranks must
  /// launch theirs.
  void launch(void* stream) const;

 private:
  void* launchable_ = nullptr;
};

}  // namespace zea
