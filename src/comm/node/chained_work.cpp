// SPDX-License-Identifier: Apache-2.0
#include "comm/node/chained_work.hpp"

#include <exception>
#include <utility>

namespace zea {

ChainedWork::ChainedWork(std::shared_ptr<Progress> progress, std::shared_ptr<Order> order,
                         Stages stages)
    : ProgressWork(std::move(progress)),
      order_(std::move(order)),
      stages_(std::move(stages)),
      number_(order_->issued++) {
  progress_->poll();
}

bool ChainedWork::advance() noexcept {
  bool moved = false;
  try {
    while (!done_ && is_stage_done()) {
      if (next_ == kNumStages) {
        finish();
      } else {
        if (order_->started[next_] != number_) break;
        ++order_->started[next_];
        under_way_ = stages_[next_++]();
      }
      moved = true;
    }
  } catch (...) {
    finish(std::current_exception());
  }
  return moved;
}

bool ChainedWork::is_stage_done() {
  bool done = true;
  for (Pending& part : under_way_) done = part.test() && done;
  if (done) under_way_.clear();
  return done;
}

}  // namespace zea
