// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include <cstdlib>

#include "device/device.hpp"
#include "device/wait_table.hpp"

namespace zea::testing {
namespace {

constexpr int kLongestDelay = 200;  // microseconds

/// The same delays on all ranks would hide faults of order between them.
uint32_t seed_of(int stream) {
  const char* rank = std::getenv("OMPI_COMM_WORLD_RANK");
  return delay_seed() + 1000 * static_cast<uint32_t>(rank ? std::atoi(rank) : 0) +
         static_cast<uint32_t>(stream);
}

}  // namespace

uint32_t delay_seed() {
  const char* asked = std::getenv("ZEA_DEVICE_SEED");
  return asked ? static_cast<uint32_t>(std::strtoul(asked, nullptr, 10))
               : static_cast<uint32_t>(getppid());  // mpirun, which the ranks of a job share
}

void Mark::reach(double at_time, const TimedWork& last_work) {
  const std::lock_guard lock(mutex);
  is_reached = true;
  time = at_time;
  last = last_work;
  reached_at = std::chrono::steady_clock::now();
  changed.notify_all();
}

double Mark::wait() {
  std::unique_lock lock(mutex);
  changed.wait(lock, [this] { return is_reached; });
  return time;
}

void Turns::await(int64_t turn) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return next_ == turn; });
}

void Turns::pass() {
  const std::lock_guard lock(mutex_);
  ++next_;
  changed_.notify_all();
}

Stream::Stream(int number, Turns* turns)
    : number_(number), turns_(turns), delays_(seed_of(number)), thread_([this] { run(); }) {}

Stream::~Stream() {
  if (number_ > 0) device().forget(this);
  {
    const std::lock_guard lock(mutex_);
    is_ending_ = true;
    changed_.notify_all();
  }
  thread_.join();
}

void Stream::put(Work work) {
  const std::lock_guard lock(mutex_);
  if (turns_ != nullptr)
    work.run = [turns = turns_, turn = turns_->take(), inner = std::move(work.run)] {
      turns->await(turn);
      inner();
      turns->pass();
    };
  using_memory_ += work.uses_memory;
  work_.push(std::move(work));
  changed_.notify_all();
}

std::shared_ptr<Mark> Stream::hold(bool uses_memory) {
  auto mark = std::make_shared<Mark>();
  put({[mark] { mark->wait(); }, uses_memory});
  return mark;
}

void Stream::drain() {
  std::unique_lock lock(mutex_);
  WaitTable::own().host_waits(number_);
  changed_.wait(lock, [this] { return work_.empty() && !is_busy_; });
  WaitTable::own().host_waits(kHost);
}

void Stream::settle() {
  std::unique_lock lock(mutex_);
  WaitTable::own().host_waits(number_);
  changed_.wait(lock, [this] { return using_memory_ == 0; });
  WaitTable::own().host_waits(kHost);
}

void Stream::run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return is_ending_ || !work_.empty(); });
    if (work_.empty()) return;
    const Work work = std::move(work_.front());
    work_.pop();
    is_busy_ = true;
    lock.unlock();
    usleep(delays_() % kLongestDelay);
    work.run();
    lock.lock();
    is_busy_ = false;
    using_memory_ -= work.uses_memory;
    changed_.notify_all();
  }
}

}  // namespace zea::testing
