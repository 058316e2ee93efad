// SPDX-License-Identifier: Apache-2.0
// A thread for what may block for ever, file systems above all, on behalf of somebody who must not
// wait for it. Errands run one after the other; nobody waits for one that is under way, not even
// the destructor, so an errand refers to nothing but what it holds itself.
#pragma once

#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <utility>

namespace zea {

class Errands {
 public:
  Errands();
  /// Errands that have not begun are dropped.
  ~Errands();
  Errands(const Errands&) = delete;
  Errands& operator=(const Errands&) = delete;

  /// What the errand returns or throws, when it has run after those before it.
  template <class Errand>
  auto post(Errand errand) -> std::future<decltype(errand())> {
    // std::function copies what it holds.
    auto task = std::make_shared<std::packaged_task<decltype(errand())()>>(std::move(errand));
    push([task] { (*task)(); });
    return task->get_future();
  }

 private:
  struct Queue;
  void push(std::function<void()> errand);

  std::shared_ptr<Queue> queue_;  ///< that the thread holds, too
};

template <class Result>
bool is_ready(const std::future<Result>& future) {
  return future.valid() && future.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
}

}  // namespace zea
