// SPDX-License-Identifier: Apache-2.0
#include "deck/key_types.hpp"

#include <gtest/gtest.h>

#include "deck/deck.hpp"

namespace zea::test_data_sources {
namespace {

std::string deck_of(const std::string& value) {
  return "[model]\nweights = \"w.h5\"\n[data]\ntrain = " + value;
}

std::string faults_of(const std::string& value) {
  try {
    parse_deck(deck_of(value), "x.toml", {});
  } catch (const DeckError& error) {
    return error.what();
  }
  return "";
}

TEST(DataSources, AreOneSetOrSeveralWithWeights) {
  const auto train = [](const std::string& value) {
    return parse_deck(deck_of("\"t.h5\""), "x.toml", {"data.train=" + value}).data.train;
  };
  EXPECT_EQ(train("a.h5"), "a.h5");
  EXPECT_EQ(train(R"(["a.h5"])"), "a.h5");
  EXPECT_EQ(train(R"(["a.h5", {path = "b", weight = 2}])").sets,
            (std::vector<DataSource>{{"a.h5", 1}, {"b", 2}}));
  const std::string list = R"([{path = "a.h5", weight = 0.1}, {path = "b\"", weight = 2.0}])";
  const Options options = parse_deck(deck_of("\"t.h5\""), "x.toml", {"data.train=" + list});
  EXPECT_NE(echo_deck(options).find("train = " + list + "\n"), std::string::npos);
  EXPECT_EQ(parse_deck(echo_deck(options), "echo", {}).data.train, options.data.train);

  const struct {
    const char* value;
    const char* fault;
  } cases[] = {
      {"[]", "data.train is not set"},
      {"7", "data.train = 7 is an integer; it must be a path, a list of paths, or a list of"},
      {"[7]", "data.train = 7 is an integer; it must be a path, a list of paths, or a list of"},
      {"[{weight = 1.0}]", "data.train is a section; it must be a path, a list of paths, or"},
      {R"([{path = "a", weigth = 1.0}])", "data.train is a section; it must be a path"},
      {R"([{path = "a", weight = "1"}])", "data.train is a section; it must be a path"},
      {R"([{path = "a"}, {path = "b", weight = 0}])",
       "the weight of b is 0.0; allowed are numbers"},
      {R"([{path = "a"}, {path = "b", weight = inf}])", "the weight of b is inf; allowed are"},
      {R"(["a", ""])", "data.train names a set without a path"},
      {R"([{path = "a", weight = 2}])", "data.train has one set, to which a weight does nothing"},
  };
  for (const auto& [value, fault] : cases)
    EXPECT_NE(faults_of(value).find(fault), std::string::npos) << faults_of(value);
}

}  // namespace
}  // namespace zea::test_data_sources
