// SPDX-License-Identifier: Apache-2.0
// A trace's rows: nested actions are in one, communications that overlap are not.
#include "watch/chrome_trace.hpp"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "support/files.hpp"

namespace zea::test_chrome_trace {
namespace {

constexpr auto kAction = TraceRow::Action;
constexpr auto kCommunication = TraceRow::Communication;

std::map<std::string, nlohmann::json> events_of(const TracedStep& traced) {
  std::map<std::string, nlohmann::json> events;
  const nlohmann::json trace = nlohmann::json::parse(chrome_trace(traced));
  for (const nlohmann::json& event : trace["traceEvents"])
    if (event["ph"] == "X") events[event["name"]] = event;
  return events;
}

TEST(ChromeTrace, CountsMicrosecondsFromTheOrigin) {
  const auto events =
      events_of({.rank = 3, .step = 5, .origin = 1000, .spans = {{kAction, "load", 3500, 6000}}});

  const nlohmann::json& event = events.at("load");
  EXPECT_EQ(event["ts"], 2.5);
  EXPECT_EQ(event["dur"], 2.5);
  EXPECT_EQ(event["pid"], 3);
  EXPECT_EQ(event["cat"], "action");
}

TEST(ChromeTrace, OverlappingCommunicationsHaveRowsOfTheirOwn) {
  const auto events = events_of({.spans = {{kCommunication, "a", 0, 100},
                                           {kCommunication, "b", 50, 150},
                                           {kCommunication, "c", 100, 200},
                                           {kAction, "d", 0, 200},
                                           {TraceRow::Wait, "e", 10, 20}}});
  const auto row = [&](const char* name) { return events.at(name)["tid"].get<int>(); };

  EXPECT_NE(row("a"), row("b"));
  EXPECT_EQ(row("a"), row("c")) << "free again";
  EXPECT_NE(row("d"), row("a"));
  EXPECT_NE(row("e"), row("a"));
  EXPECT_NE(row("e"), row("d"));
}

TEST(ChromeTrace, EveryRankHasAFileOfItsOwn) {
  const TemporaryDirectory directory;
  for (int rank : {0, 12}) write_chrome_trace(directory.path(), {.rank = rank, .host = "h"});

  for (const char* name : {"rank-00000.json", "rank-00012.json"}) {
    std::ifstream file(directory.path() + "/trace/" + name);
    EXPECT_TRUE(nlohmann::json::accept(file)) << name;
  }
}

}  // namespace
}  // namespace zea::test_chrome_trace
