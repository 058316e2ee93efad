// SPDX-License-Identifier: Apache-2.0
// What may block for ever blocks nobody else.
#include "watch/errands.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <stdexcept>
#include <string>

namespace zea::test_errands {
namespace {

TEST(Errands, RunOneAfterTheOther) {
  Errands errands;
  std::atomic<int> done = 0;
  std::future<int> first = errands.post([&] { return ++done; });
  std::future<std::string> second = errands.post([&] { return std::to_string(++done); });

  EXPECT_EQ(first.get(), 1);
  EXPECT_EQ(second.get(), "2");
}

TEST(Errands, HandOnWhatIsThrown) {
  Errands errands;
  std::future<void> failing = errands.post([] { throw std::runtime_error("disk"); });

  EXPECT_THROW(failing.get(), std::runtime_error);
  EXPECT_EQ(errands.post([] { return 3; }).get(), 3) << "the next one runs all the same";
}

TEST(Errands, NobodyWaitsForOneThatHangs) {
  std::promise<void> begun, opens;
  std::future<void> hanging, next;
  {
    Errands errands;
    hanging = errands.post([&begun, gate = opens.get_future().share()] {
      begun.set_value();
      gate.wait();
    });
    next = errands.post([] {});
    begun.get_future().wait();
  }
  EXPECT_FALSE(is_ready(hanging));
  opens.set_value();
  hanging.get();

  EXPECT_THROW(next.get(), std::future_error) << "was dropped";
}

}  // namespace
}  // namespace zea::test_errands
