// SPDX-License-Identifier: Apache-2.0
// Reading the record of a rank from outside, while it is written and when it is left in the middle.
#include "core/action_record.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <optional>
#include <thread>

#include "core/error.hpp"

namespace zea::test_action_record {
namespace {

class ActionRecordTest : public ::testing::Test {
 protected:
  RankState state() const { return read_rank_state(memory_.data()); }

  std::vector<std::byte> memory_ = std::vector<std::byte>(ActionRecord::memory_bytes());
  ActionRecord record_{memory_.data()};
};

TEST_F(ActionRecordTest, TellsWhatIsUnderWayAndWhatWasDone) {
  record_.begin_step(7);
  { const ActionRecord::Action done(record_, "load"); }
  const ActionRecord::Action outer(record_, "evaluation");
  const ActionRecord::Action inner(record_, "forward llm.head");

  const RankState seen = state();

  EXPECT_EQ(seen.step, 7);
  ASSERT_EQ(seen.actions.size(), 1);
  EXPECT_EQ(seen.actions[0].name, "load");
  EXPECT_GE(seen.actions[0].end, seen.actions[0].begin);
  EXPECT_GT(seen.actions[0].begin, 0);
  ASSERT_EQ(seen.open.size(), 2);
  EXPECT_EQ(seen.open[0].name, "evaluation");
  EXPECT_EQ(seen.open[1].name, "forward llm.head");
  EXPECT_EQ(seen.open[1].end, 0);
  EXPECT_FALSE(seen.waits);
  EXPECT_EQ(seen.process, getpid());
}

TEST_F(ActionRecordTest, RemembersTheLastOnesInTheirOrder) {
  for (int i = 0; i < kRecordedActions + 10; ++i)
    const ActionRecord::Action action(record_, "action " + std::to_string(i));

  const RankState seen = state();

  ASSERT_EQ(seen.actions.size(), kRecordedActions);
  for (int i = 0; i < kRecordedActions; ++i)
    EXPECT_EQ(seen.actions[i].name, "action " + std::to_string(i + 10));
}

TEST_F(ActionRecordTest, NumbersTheCallsOfEachGroup) {
  const int tp = record_.add_group("llm.tp (ranks 0 1)"), control = record_.add_group("control");
  EXPECT_EQ(record_.add_group("control"), control);
  ActionRecord::Call first = record_.begin_call(tp, "all_reduce 4 float32");
  record_.end_call(first);
  record_.begin_call(control, "barrier");
  const ActionRecord::Call last = record_.begin_call(tp, "all_gather 8 float32");
  std::optional<ActionRecord::Wait> wait(std::in_place, record_, last, AwaitedPeers{});

  RankState seen = state();

  EXPECT_EQ(seen.calls_of_group,
            (std::map<std::string, int64_t>{{"control", 1}, {"llm.tp (ranks 0 1)", 2}}));
  ASSERT_EQ(seen.calls.size(), 3);
  EXPECT_EQ(seen.calls[0].name, "all_reduce 4 float32 #1 of llm.tp (ranks 0 1)");
  EXPECT_GT(seen.calls[0].end, 0);
  EXPECT_EQ(seen.calls[2].end, 0) << "still under way";
  ASSERT_TRUE(seen.waits);
  EXPECT_EQ(seen.waits->group, "llm.tp (ranks 0 1)");
  EXPECT_EQ(seen.waits->call, 2);
  EXPECT_TRUE(seen.waits->peers.empty());
  EXPECT_EQ(seen.open.back().name, "wait for all_gather 8 float32 #2 of llm.tp (ranks 0 1)");

  wait.reset();
  EXPECT_FALSE(state().waits);
}

TEST_F(ActionRecordTest, WaitsNameThePeer) {
  const ActionRecord::Call call = record_.begin_call(record_.add_group("link"), "recv from rank 3");
  const ActionRecord::Wait wait(record_, call, {{3}});

  EXPECT_EQ(state().waits->peers, std::vector<int>{3});
}

TEST_F(ActionRecordTest, ACallLeftToTheDeviceEndsWhenTheDeviceHasDoneIt) {
  const int tp = record_.add_group("tp"), link = record_.add_group("link");
  int done_of_tp = 0;
  bool is_link_done = false;
  const auto leave = [&](int group, const char* what, AwaitedPeers peers, auto has_ended) {
    record_.leave_to_device(record_.begin_call(group, what), std::move(peers), has_ended);
  };
  record_.start_trace();
  leave(tp, "all_reduce", {}, [&] { return done_of_tp >= 1; });
  leave(tp, "all_gather", {}, [&] { return done_of_tp >= 2; });
  leave(link, "recv from rank 3", {{3}}, [&] { return is_link_done; });

  EXPECT_EQ(state().on_device->name, "all_reduce #1 of tp");
  EXPECT_EQ(state().waits->group, "tp");
  EXPECT_EQ(state().waits->call, 1);
  record_.look_at_device();
  const int64_t moves = state().moves;
  done_of_tp = 2;
  record_.look_at_device();

  EXPECT_EQ(state().moves, moves + 2);
  EXPECT_EQ(state().on_device->name, "recv from rank 3 #1 of link");
  EXPECT_EQ(state().waits->peers, std::vector<int>{3});
  EXPECT_NE(state().calls[1].end, 0);
  EXPECT_EQ(state().calls[2].end, 0);
  is_link_done = true;
  record_.look_at_device();

  EXPECT_FALSE(state().on_device);
  EXPECT_FALSE(state().waits);
  EXPECT_EQ(record_.take_trace().size(), 3u);
}

TEST_F(ActionRecordTest, WhatBecameOfADevicesCallIsToldByItsName) {
  const int tp = record_.add_group("tp");
  const auto fails = []() -> bool { throw std::runtime_error("a cable"); };  // of any type
  try {
    record_.leave_to_device(record_.begin_call(tp, "all_reduce"), {}, fails);
    FAIL() << "nothing was thrown";
  } catch (const CommError& error) {
    EXPECT_STREQ(error.what(), "the device has not done all_reduce #1 of tp: a cable");
  }
  EXPECT_THROW(record_.look_at_device(), CommError);
  record_.forget_device_calls(tp);
  record_.look_at_device();
  EXPECT_FALSE(state().on_device);
}

TEST_F(ActionRecordTest, AnotherThreadMayLookAtTheDevice) {
  constexpr int kCalls = 2000;
  const int tp = record_.add_group("tp");
  std::atomic<int> done = 0;
  std::atomic<bool> is_over = false;
  std::thread watchdog([&] {
    while (!is_over) record_.look_at_device();
  });
  record_.start_trace();
  for (int i = 1; i <= kCalls; ++i) {
    record_.leave_to_device(record_.begin_call(tp, "all_reduce"), {},
                            [&done, i] { return done >= i; });
    if (i % 3 == 0) done = i;
  }
  done = kCalls;
  is_over = true;
  watchdog.join();
  record_.look_at_device();

  EXPECT_FALSE(state().on_device);
  EXPECT_EQ(record_.take_trace().size(), static_cast<size_t>(kCalls));
}

TEST_F(ActionRecordTest, EverythingThatBeginsOrEndsIsAMove) {
  const auto moves = [&] { return read_moves(memory_.data()); };
  int64_t before = moves();
  const auto moved = [&] { return moves() > std::exchange(before, moves()); };

  std::optional<ActionRecord::Action> action(std::in_place, record_, "load");
  EXPECT_TRUE(moved());
  EXPECT_FALSE(moved());
  action.reset();
  EXPECT_TRUE(moved());
  ActionRecord::Call call = record_.begin_call(-1, "barrier");
  EXPECT_TRUE(moved());
  record_.end_call(call);
  EXPECT_TRUE(moved());
  record_.beat();
  EXPECT_FALSE(moved()) << "that threads run is not that the run goes on";
}

TEST_F(ActionRecordTest, LongTextIsCutOffAndManyLevelsAndGroupsAreCounted) {
  { const ActionRecord::Action action(record_, std::string(500, 'x')); }
  EXPECT_EQ(state().actions[0].name, std::string(111, 'x'));

  std::vector<std::unique_ptr<ActionRecord::Action>> deep;
  for (int i = 0; i < 20; ++i)
    deep.push_back(std::make_unique<ActionRecord::Action>(record_, std::to_string(i)));
  EXPECT_EQ(state().open.size(), 8);
  while (!deep.empty()) deep.pop_back();
  EXPECT_TRUE(state().open.empty());
  EXPECT_EQ(state().actions.size(), 21);

  for (int i = 0; i < 1000; ++i) record_.add_group("group " + std::to_string(i));
  EXPECT_EQ(record_.add_group("one more"), -1);
}

TEST_F(ActionRecordTest, KeepsSpansWhileItTraces) {
  { const ActionRecord::Action before(record_, "before"); }
  record_.start_trace();
  {
    const ActionRecord::Action action(record_, "backward");
    ActionRecord::Call call = record_.begin_call(-1, "all_reduce");
    { const ActionRecord::Wait wait(record_, call, {}); }
    record_.end_call(call);
  }
  const std::vector<TraceSpan> spans = record_.take_trace();
  { const ActionRecord::Action after(record_, "after"); }

  ASSERT_EQ(spans.size(), 3);
  EXPECT_EQ(spans[0].row, TraceRow::Wait);
  EXPECT_EQ(spans[1].row, TraceRow::Communication);
  EXPECT_EQ(spans[2].name, "backward");
  EXPECT_LE(spans[2].begin, spans[1].begin);
  EXPECT_GE(spans[2].end, spans[1].end);
  EXPECT_TRUE(record_.take_trace().empty());
  EXPECT_NEAR(record_.wait_seconds(), 1e-9 * static_cast<double>(spans[0].end - spans[0].begin),
              1e-12);
}

// The names of a ring's place differ in every word, so a torn one would be seen.
TEST_F(ActionRecordTest, IsReadWholeWhileItIsWritten) {
  std::atomic<bool> is_over = false;
  std::thread writer([&] {
    for (int i = 0; !is_over; ++i)
      const ActionRecord::Action action(record_, std::string(40, static_cast<char>('a' + i % 26)));
  });
  size_t seen = 0;
  while (seen < 20000)
    for (const RecordedSpan& span : state().actions) {
      ASSERT_EQ(span.name, std::string(40, span.name[0]));
      ++seen;
    }
  is_over = true;
  writer.join();
}

}  // namespace
}  // namespace zea::test_action_record
