// SPDX-License-Identifier: Apache-2.0
#include "train/device_step_clock.hpp"

#include <utility>

#include "parallel/slots.hpp"

namespace zea {
namespace {

c10::Event timed_event(at::Device device) {
  return {device.type(), c10::EventFlag::BACKEND_DEFAULT};
}

}  // namespace

DeviceStepClock::DeviceStepClock(at::Device device)
    : device_(device),
      next_(timed_event(device)),
      begun_(timed_event(device)),
      ended_(timed_event(device)) {}

void DeviceStepClock::begin() {
  next_.record(current_stream(device_));
}

void DeviceStepClock::end() {
  std::swap(next_, begun_);
  ended_.record(current_stream(device_));
}

double DeviceStepClock::wait() {
  ended_.synchronize();
  return 1e-3 * begun_.elapsedTime(ended_);
}

}  // namespace zea
