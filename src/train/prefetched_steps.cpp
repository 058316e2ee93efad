// SPDX-License-Identifier: Apache-2.0
#include "train/prefetched_steps.hpp"

#include <c10/core/impl/VirtualGuardImpl.h>

#include <utility>

#include "batch/make_microbatch.hpp"

namespace zea {

PrefetchedSteps::PrefetchedSteps(Loader& loader, const Engine& engine, int64_t first_step,
                                 int64_t end_step)
    : loader_(loader), engine_(engine), device_(engine.microbatch_options().device) {
  if (device_.is_cpu()) return;
  copies_ = c10::impl::VirtualGuardImpl(device_.type()).getStreamFromGlobalPool(device_);
  const auto make_all = [this](int64_t, const std::stop_token&) {
    // Pinned memory asks CUDA of this thread's device, which would be the first of the node.
    c10::impl::VirtualGuardImpl(device_.type()).setDevice(device_);
    PrefetchedStep made{loader_.next()};
    for (size_t m = 0; m < made.loaded.microbatches.size(); ++m)
      made.microbatches.push_back(make(made.loaded, m));
    return made;
  };
  ahead_.emplace(make_all, first_step, end_step, 1);
}

PrefetchedStep PrefetchedSteps::next() {
  return ahead_ ? ahead_->next() : PrefetchedStep{loader_.next()};
}

Microbatch PrefetchedSteps::take(PrefetchedStep& step, size_t number) const {
  return move_to(device_, ahead_ ? std::move(step.microbatches[number]) : make(step.loaded, number),
                 copies_);
}

PackedMicrobatch PrefetchedSteps::make(const LoadedStep& loaded, size_t number) const {
  return make_packed_microbatch(loaded.microbatches[number], engine_.plan().model,
                                engine_.microbatch_options(loaded.plan.step));
}

}  // namespace zea
