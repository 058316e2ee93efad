// SPDX-License-Identifier: Apache-2.0
// What a step takes that the host hears of while it launches the next one: the time between two
// events of the device's stream, the first recorded when the step begins on the host. Where the
// device is behind, that is reached when the step before is done, so the device's time is counted;
// where the host is, at once, so loading and launching are. What lies between steps is in none.
#pragma once

#include <ATen/ATen.h>
#include <c10/core/Event.h>

namespace zea {

class DeviceStepClock {
 public:
  explicit DeviceStepClock(at::Device device);

  /// A step begins on the host; the device may still be in the one before.
  void begin();
  /// The device has been given all of that step. The one before has been waited for.
  void end();
  /// Until the device has done the step that ended last; gives its seconds.
  double wait();

 private:
  at::Device device_;
  c10::Event next_, begun_;  ///< of a step that has not ended, and of the one that ended last
  c10::Event ended_;
};

}  // namespace zea
