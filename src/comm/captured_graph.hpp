// SPDX-License-Identifier: Apache-2.0
// A CUDA graph: work that was captured from streams once and is launched as a whole any number of
// times. It reads and writes the addresses of the capture.
#pragma once

#include <functional>

namespace zea {

class CapturedGraph {
 public:
  /// Keeps what `work` puts into `stream`, which must not be the default one, and into streams that
  /// wait for it and that it waits for in the end. Nothing of it runs. While it lasts the calling
  /// thread may neither wait for the device nor ask how far it is. Throws CommError with CUDA's own
  /// text, and what `work` throws.
  CapturedGraph(void* stream, const std::function<void()>& work);
  CapturedGraph(const CapturedGraph&) = delete;
  CapturedGraph& operator=(const CapturedGraph&) = delete;
  /// Work that is under way ends by itself (cudaGraphExecDestroy).
  ~CapturedGraph();

  /// All of it, behind what `stream` holds. Where it communicates, all ranks launch theirs.
  void launch(void* stream) const;

 private:
  void* launchable_ = nullptr;
};

}  // namespace zea
