// SPDX-License-Identifier: Apache-2.0
#include "io/strict_json.hpp"

#include <gtest/gtest.h>

#include <vector>

#include "core/error.hpp"
#include "support/files.hpp"

namespace zea::test_strict_json {
namespace {

using nlohmann::json;

std::string refusal_of(const std::string& text) {
  try {
    parse_strict_json(text, "it");
  } catch (const WeightsError& error) {
    return error.what();
  }
  return "";
}

TEST(StrictJson, ReadsWhatTheLibraryReads) {
  for (const char* text :
       {"{}", "[]", "3", "-1.5e3", "\"a\\u00e9\"", "null", "true", "18446744073709551615",
        R"({"a": [1, {"b": [[], {}, "c", null]}], "d": {"a": {"a": false}}, "e": -7})"})
    EXPECT_EQ(parse_strict_json(text, "it"), json::parse(text)) << text;
}

TEST(StrictJson, RefusesWhatFilesMayHide) {
  EXPECT_TRUE(contains(refusal_of(R"({"a": 1, "a": 1})"), "it: JSON has the key \"a\" twice"));
  EXPECT_TRUE(contains(refusal_of(R"({"a": [{"b": 1, "c": {"b": 2}, "b": 3}]})"), "\"b\" twice"));
  EXPECT_EQ(refusal_of(std::string(64, '[') + std::string(64, ']')), "");
  EXPECT_TRUE(contains(refusal_of(std::string(65, '[')), "it: JSON is nested too deeply"));
  for (const char* text : {"", "{", "[1,]", "{\"a\" 1}", "1 2", "nul", "\"\xff\""})
    EXPECT_TRUE(contains(refusal_of(text), "it: [json.exception")) << text;
}

/// So the time to read a list does not grow with its length, and it is never in memory as a whole.
TEST(StrictJson, GivesAwayTheElementsOfAList) {
  const char* text = R"({"a": [1, 2], "list": [{"list": [3, 4]}, [5], "6"], "b": {"list": [7]}})";
  std::vector<json> elements;
  const json rest = parse_strict_json(
      text, "it", {"list", [&](const json& element) { elements.push_back(element); }});
  EXPECT_EQ(elements, (std::vector<json>{{{"list", {3, 4}}}, json::array({5}), "6"}));
  EXPECT_EQ(rest, json::parse(R"({"a": [1, 2], "list": [], "b": {"list": [7]}})"));
}

}  // namespace
}  // namespace zea::test_strict_json
