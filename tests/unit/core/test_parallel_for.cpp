// SPDX-License-Identifier: Apache-2.0
#include "core/threads.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <mutex>
#include <set>
#include <stdexcept>
#include <thread>
#include <vector>

namespace zea::test_parallel_for {
namespace {

TEST(ParallelFor, DoesEachItemOnceByNoMoreThreadsThanAsked) {
  for (const int threads : {1, 2, 5})
    for (const size_t items : {0, 1, 3, 1000}) {
      std::vector<std::atomic<int>> calls(items);
      std::mutex mutex;
      std::set<std::pair<int, std::thread::id>> seen;
      parallel_for(threads, items, [&](int thread, size_t item) {
        ++calls[item];
        const std::lock_guard<std::mutex> lock(mutex);
        seen.emplace(thread, std::this_thread::get_id());
      });
      for (const std::atomic<int>& count : calls) EXPECT_EQ(count, 1);
      EXPECT_LE(seen.size(), std::min(static_cast<size_t>(threads), items));
      for (const auto& [thread, id] : seen) EXPECT_TRUE(thread >= 0 && thread < threads);
    }
}

TEST(ParallelFor, SharesItemsThatWaitForEachOther) {
  std::atomic<int> met = 0;
  parallel_for(2, 2, [&](int, size_t) {
    ++met;
    while (met < 2) std::this_thread::yield();  // for ever, were there only one thread
  });
  EXPECT_EQ(met, 2);
}

TEST(ParallelFor, BeginsNoItemAfterOneThatThrewAndTellsTheLowest) {
  constexpr size_t kEndless = size_t{1} << 40;
  for (const int threads : {1, 4}) {
    std::atomic<bool> has_thrown = false;
    try {
      parallel_for(threads, kEndless, [&](int, size_t item) {
        if (item == 2) {
          while (threads > 1 && !has_thrown) std::this_thread::yield();  // item 3 is first
          throw std::runtime_error("item 2");
        }
        if (item != 3) return;
        has_thrown = true;
        throw std::runtime_error("item 3");
      });
      FAIL() << "nothing was thrown";
    } catch (const std::runtime_error& error) {
      EXPECT_STREQ(error.what(), "item 2");
    }
  }
}

}  // namespace
}  // namespace zea::test_parallel_for
