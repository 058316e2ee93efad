// SPDX-License-Identifier: Apache-2.0
// Graphs of whole walks of a step (run.cuda_graphs), one for each of the latest shapes: a walk of a
// shape that was seen before is captured, from then on it is launched. A graph reads the
// microbatches of its own that it was captured with; those of a step are copied into them.
#pragma once

#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <c10/core/Stream.h>

#include "comm/captured_graph.hpp"
#include "comm/mesh.hpp"
#include "model/microbatch.hpp"
#include "parallel/device_memory.hpp"
#include "schedule/schedule.hpp"

namespace zea {

class StepGraphs {
 public:
  /// What a step does up to the sums of its gradients, on microbatches that it is given; gives this
  /// rank's loss, undefined for none. It must leave nothing behind on the host, and nothing in the
  /// device's memory that it does not write anew.
  using Walk = std::function<at::Tensor(const std::vector<Microbatch>&)>;

  struct Counts {
    int64_t eager = 0, captured = 0, replayed = 0;
  };

  /// At most `shapes` are kept; `eager_step`, counted from 1, is never of a graph. `mesh` outlives
  /// this.
  StepGraphs(int64_t shapes, int64_t eager_step, Mesh& mesh, at::Device device);
  StepGraphs(const StepGraphs&) = delete;
  StepGraphs& operator=(const StepGraphs&) = delete;
  ~StepGraphs();

  /// Runs `walk` on microbatches like those of `step`, or launches its graph; all ranks do the
  /// same. The loss holds until the next call.
  at::Tensor run(const RankStep& step, const std::vector<Microbatch>& microbatches,
                 const Walk& walk);

  const Counts& counts() const { return counts_; }
  /// One sentence of them.
  std::string summary() const;

 private:
  struct Kept {
    StepShape shape;
    std::vector<Microbatch> microbatches = {};
    std::unique_ptr<GraphMemory> memory = {};
    std::unique_ptr<CapturedGraph> graph = {};
    at::Tensor loss = {};  ///< in that memory
    Traffic sent = {};
  };

  void keep(const RankStep& step, const std::vector<Microbatch>& microbatches);
  void capture(Kept& kept, const Walk& walk);
  void launch(Kept& kept);

  const size_t most_;
  const int64_t eager_step_;
  Mesh& mesh_;
  const at::Device device_;
  const c10::Stream stream_;  ///< for captures alone
  const c10::MempoolId_t pool_;
  GraphMemory held_;      ///< none of it: the pool does not end when one graph follows another
  const int group_;       ///< of launches, in the record
  std::list<Kept> kept_;  ///< the latest first
  Counts counts_;
};

}  // namespace zea
