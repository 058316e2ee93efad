// SPDX-License-Identifier: Apache-2.0
#include "watch/errands.hpp"

#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>

namespace zea {

struct Errands::Queue {
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::function<void()>> waiting;
  bool has_thread = false, is_over = false;

  void run() {
    std::unique_lock lock(mutex);
    for (;;) {
      changed.wait(lock, [&] { return is_over || !waiting.empty(); });
      if (is_over) return;
      const std::function<void()> errand = std::move(waiting.front());
      waiting.pop_front();
      lock.unlock();
      errand();
      lock.lock();
    }
  }
};

Errands::Errands() : queue_(std::make_shared<Queue>()) {}

Errands::~Errands() {
  const std::lock_guard lock(queue_->mutex);
  queue_->is_over = true;
  queue_->changed.notify_all();
}

void Errands::push(std::function<void()> errand) {
  const std::lock_guard lock(queue_->mutex);
  queue_->waiting.push_back(std::move(errand));
  queue_->changed.notify_all();
  if (std::exchange(queue_->has_thread, true)) return;
  std::thread([queue = queue_] { queue->run(); }).detach();
}

}  // namespace zea
