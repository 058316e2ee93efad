// SPDX-License-Identifier: Apache-2.0
#include "node/chained_work.hpp"

#include <exception>
#include <utility>

namespace zea {

ChainedWork::ChainedWork(std::shared_ptr<Progress> progress, std::shared_ptr<Order> order,
                         Stages stages)
    : progress_(std::move(progress)),
      order_(std::move(order)),
      stages_(std::move(stages)),
      number_(order_->issued++) {
  progress_->add(this);
  progress_->poll();
}

ChainedWork::~ChainedWork() {
  if (!done_ && std::uncaught_exceptions() == 0) progress_->wait_until([this] { return done_; });
  progress_->remove(this);
}

void ChainedWork::wait() {
  if (!done_) progress_->wait_until([this] { return done_; });
  rethrow();
}

bool ChainedWork::test() {
  if (!done_) progress_->poll();
  rethrow();
  return done_;
}

bool ChainedWork::advance() noexcept {
  bool moved = false;
  try {
    while (!done_ && is_stage_done()) {
      if (next_ == kNumStages) {
        done_ = true;
      } else {
        if (order_->started[next_] != number_) break;
        ++order_->started[next_];
        under_way_ = stages_[next_++]();
      }
      moved = true;
    }
  } catch (...) {
    failure_ = std::current_exception();
    done_ = true;
  }
  if (done_) progress_->remove(this);
  return moved;
}

bool ChainedWork::is_stage_done() {
  bool done = true;
  for (Pending& part : under_way_) done = part.test() && done;
  if (done) under_way_.clear();
  return done;
}

void ChainedWork::rethrow() {
  if (failure_) std::rethrow_exception(failure_);
}

}  // namespace zea
