// SPDX-License-Identifier: Apache-2.0
// The stand-in device lags behind its host: operations are launched earlier, and events tell when
// the device reached them.
#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "device/device.hpp"
#include "device/torch_device.hpp"
#include "parallel/slots.hpp"

namespace zea::testing::test_timed_events {
namespace {

constexpr double kMilliseconds = 200;

void work() {
  std::this_thread::sleep_for(std::chrono::duration<double, std::milli>(kMilliseconds));
}

c10::Event event_with(c10::EventFlag flag) {
  return {stand_in_device().type(), flag};
}

TEST(TimedEvents, TellWhenTheDeviceCameToThem) {
  const c10::Stream stream = current_stream(stand_in_device());
  c10::Event begun = event_with(c10::EventFlag::BACKEND_DEFAULT),
             ended = event_with(c10::EventFlag::BACKEND_DEFAULT);
  begun.record(stream);
  const std::shared_ptr<Mark> goes_on = device().compute().hold_aside();
  device().compute().push_aside(work);
  ended.record(stream);
  EXPECT_THROW(begun.elapsedTime(ended), c10::Error) << "it has not come so far";
  goes_on->reach();
  ended.synchronize();
  EXPECT_GE(begun.elapsedTime(ended), kMilliseconds);
}

TEST(TimedEvents, AreMadeSo) {
  const c10::Stream stream = current_stream(stand_in_device());
  c10::Event timed = event_with(c10::EventFlag::BACKEND_DEFAULT),
             untimed = event_with(c10::EventFlag::PYTORCH_DEFAULT);
  timed.record(stream), untimed.record(stream);
  untimed.synchronize();
  EXPECT_THROW(timed.elapsedTime(untimed), c10::Error);
}

TEST(TimedEvents, AreReachedBehindWorkThatTheHostDoesNotWaitFor) {
  at::Tensor x = at::ones({4}).to(stand_in_device());
  const std::shared_ptr<Mark> goes_on = device().compute().hold_aside();
  x.add_(1);  // is launched
  c10::Event added = event_with(c10::EventFlag::PYTORCH_DEFAULT);
  added.record(current_stream(x.device()));
  EXPECT_FALSE(added.query());
  goes_on->reach();
  EXPECT_TRUE(x.cpu().equal(at::full({4}, 2.0)));
  EXPECT_TRUE(added.query()) << "the host has waited for the copy";
}

}  // namespace
}  // namespace zea::testing::test_timed_events
