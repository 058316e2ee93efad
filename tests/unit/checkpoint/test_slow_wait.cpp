// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/checkpoint_writer.hpp"

#include <gtest/gtest.h>

#include <cstddef>
#include <vector>

#include "core/action_record.hpp"

namespace zea::detail::test_slow_wait {
namespace {

TEST(SlowWait, MovesAsOftenAsTheCountIsAnother) {
  std::vector<std::byte> memory(ActionRecord::memory_bytes());
  ActionRecord record(memory.data());
  const std::vector<int64_t> counts{3, 3, 8, 8, 8, 9};
  size_t looks = 0;
  const int64_t before = read_moves(memory.data());

  wait_while_slow(
      record, [&] { return looks == counts.size(); }, [&] { return counts[looks++]; });

  EXPECT_EQ(looks, counts.size());
  EXPECT_EQ(read_moves(memory.data()) - before, 3);
}

TEST(SlowWait, DoesNotBeginWhereAllIsDone) {
  ActionRecord record;

  wait_while_slow(
      record, [] { return true; },
      []() -> int64_t {
        ADD_FAILURE();
        return 0;
      });
}

}  // namespace
}  // namespace zea::detail::test_slow_wait
