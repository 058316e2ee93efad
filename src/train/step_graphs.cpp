// SPDX-License-Identifier: Apache-2.0
#include "train/train_step.hpp"

#include <algorithm>
#include <utility>

#include "batch/make_microbatch.hpp"
#include "core/error.hpp"
#include "parallel/slots.hpp"

namespace zea {

StepGraphs::StepGraphs(int64_t shapes, int64_t eager_step, Mesh& mesh, at::Device device)
    : most_(static_cast<size_t>(shapes)),
      eager_step_(eager_step),
      mesh_(mesh),
      device_(device),
      // From the pool that nothing else here uses: streams of a pool are reused in turn.
      stream_(c10::impl::VirtualGuardImpl(device.type())
                  .getStreamFromGlobalPool(device, /*isHighPriority=*/true)),
      pool_(new_graph_pool()),
      held_(pool_, stream_),
      group_(mesh.record().add_group("graphs of steps")) {
  held_.close();
}

StepGraphs::~StepGraphs() {
  mesh_.record().forget_device_calls(group_);
}

StepLoss StepGraphs::run(const RankStep& step, const std::vector<Microbatch>& microbatches,
                         const Walk& walk) {
  const auto known = std::ranges::find(kept_, step.shape, &Kept::shape);
  if (known == kept_.end() || step.step + 1 == eager_step_) {
    ++counts_.eager;
    if (step.step + 1 == eager_step_) return walk(microbatches);
    // Values that units compute from a microbatch and keep for it are made before the
    // capture.
    keep(step, microbatches);
    return walk(kept_.front().microbatches);
  }
  kept_.splice(kept_.begin(), kept_, known);
  Kept& kept = kept_.front();
  for (size_t m = 0; m < microbatches.size(); ++m) {
    ZEA_ASSERT(is_laid_out_alike(kept.microbatches.at(m), microbatches[m]));
    kept.microbatches[m].block.copy_(microbatches[m].block);
  }
  if (kept.graph) {
    ++counts_.replayed;
    mesh_.count(kept.sent);
  } else {
    ++counts_.captured;
    capture(kept, walk);
  }
  launch(kept);
  return kept.loss;
}

void StepGraphs::keep(const RankStep& step, const std::vector<Microbatch>& microbatches) {
  if (kept_.size() == most_) kept_.pop_back();
  kept_.push_front({.shape = step.shape});
  for (const Microbatch& microbatch : microbatches)
    kept_.front().microbatches.push_back(with_own_block(microbatch));
}

void StepGraphs::capture(Kept& kept, const Walk& walk) {
  const ActionRecord::Action action(mesh_.record(), "capture a graph of the step");
  const Traffic before = mesh_.traffic();
  const c10::StreamGuard guard(stream_);
  kept.memory = std::make_unique<GraphMemory>(pool_, stream_);
  kept.graph = std::make_unique<CapturedGraph>(stream_handle(stream_),
                                               [&] { kept.loss = walk(kept.microbatches); });
  kept.memory->close();
  kept.sent = traffic_between(before, mesh_.traffic());
}

void StepGraphs::launch(Kept& kept) {
  ActionRecord::Call call = mesh_.record().begin_call(group_, "a step's graph");
  const c10::Stream stream = current_stream(device_);
  kept.graph->launch(stream_handle(stream));
  const auto ended = std::make_shared<c10::Event>(device_.type());
  ended->record(stream);
  mesh_.record().leave_to_device(std::move(call), {}, [ended, device = device_] {
    c10::impl::VirtualGuardImpl(device.type())
        .setDevice(device);  // the watchdog's thread asks, too
    return ended->query();
  });
}

std::string StepGraphs::summary() const {
  return "run.cuda_graphs: of the walks of " +
         std::to_string(counts_.eager + counts_.captured + counts_.replayed) + " steps " +
         std::to_string(counts_.replayed) + " were launched as graphs, " +
         std::to_string(counts_.captured) + " captured and launched, " +
         std::to_string(counts_.eager) + " run action by action";
}

}  // namespace zea
