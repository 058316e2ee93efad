// SPDX-License-Identifier: Apache-2.0
// Claims of the table of grids: the plan accepts every layout, any two compatible settings occur
// together in one of them, and a refused grid is refused with its sentence.
#include "support/grid_table.hpp"

#include <gtest/gtest.h>

#include <functional>
#include <set>

#include "core/error.hpp"
#include "schedule/plan.hpp"

namespace zea::testing::test_grid_table {
namespace {

constexpr int kMostRanks = 8;

std::string refusal(const Options& deck, const std::string& config, int ranks) {
  try {
    make_plan(deck, config, ranks);
  } catch (const PlanError& error) {
    return error.what();
  }
  return "accepted";
}

std::string refusal(const Grid& grid) {
  Options deck;
  apply(grid, deck);
  return refusal(deck, tiny_llava_config(model_for(grid, {.audio = true})), grid.ranks());
}

/// One setting of one grid: "tp = 2".
using Setting = std::pair<std::string, std::string>;

/// A setting that varies in the table, with all its values. A grid in which it has no meaning (a
/// mode of one cp rank) has none of them.
struct Factor {
  std::string name;
  std::vector<std::string> values;
  std::function<std::string(const Grid&)> value_of;
  std::function<void(Grid&, const std::string&)> set;
};

std::string text(const char* value) {
  return value;
}

const char* kept(const std::vector<const char*>& all, const std::string& value) {
  for (const char* one : all)
    if (value == one) return one;
  throw std::invalid_argument(value);
}

const std::vector<const char*> kModes{"allgather_kv", "ring", "ulysses", "ulysses_ring"};
const std::vector<const char*> kDistributions{"uniform", "zigzag", "makespan_min"};
const std::vector<const char*> kStrategies{"no_shard", "full_shard", "shard_grad_op",
                                           "hybrid_shard"};

std::vector<std::string> strings(const std::vector<const char*>& all) {
  return {all.begin(), all.end()};
}

/// Another number of ranks than `own` that may divide those of a replica.
int another(int own, int other) {
  return own > 1 ? 1 : other % 2 == 0 ? 2 : other;
}

/// Whether vision has another number of ranks on an axis than the language model.
Factor factor_of_vision(const char* name, int GridModule::*axis, int GridModule::*other) {
  return {name,
          {"as llm", "another"},
          [=](const Grid& g) {
            return text(g.vision && (*g.vision).*axis != g.llm.*axis ? "another" : "as llm");
          },
          [=](Grid& g, const std::string& value) {
            if (!g.vision) return;
            (*g.vision).*axis =
                value == "as llm" ? g.llm.*axis : another(g.llm.*axis, g.llm.*other);
          }};
}

std::vector<Factor> factors() {
  const auto number = [](int value) { return std::to_string(value); };
  return {
      {"tp",
       {"1", "2", "4"},
       [=](const Grid& g) { return number(g.llm.tp); },
       [](Grid& g, const std::string& value) { g.llm.tp = std::stoi(value); }},
      {"cp",
       {"1", "2", "3", "4"},
       [=](const Grid& g) { return number(g.llm.cp); },
       [](Grid& g, const std::string& value) { g.llm.cp = std::stoi(value); }},
      {"cp_mode", strings(kModes),
       [](const Grid& g) { return g.llm.cp > 1 ? text(g.llm.mode) : ""; },
       [](Grid& g, const std::string& value) { g.llm.mode = kept(kModes, value); }},
      {"cp_distribution", strings(kDistributions),
       [](const Grid& g) { return g.llm.cp > 1 ? text(g.llm.distribution) : ""; },
       [](Grid& g, const std::string& value) { g.llm.distribution = kept(kDistributions, value); }},
      {"sequence_parallel",
       {"on", "off"},
       [](const Grid& g) {
         return text(g.llm.tp == 1 ? "" : g.llm.sequence_parallel ? "on" : "off");
       },
       [](Grid& g, const std::string& value) { g.llm.sequence_parallel = value == "on"; }},
      {"strategy", strings(kStrategies), [](const Grid& g) { return text(g.strategy); },
       [](Grid& g, const std::string& value) { g.strategy = kept(kStrategies, value); }},
      {"replicas",
       {"1", "2"},
       [=](const Grid& g) { return number(g.replicas); },
       [](Grid& g, const std::string& value) { g.replicas = std::stoi(value); }},
      {"vision",
       {"as llm", "another grid"},
       [](const Grid& g) {
         const bool differs = g.vision && (g.vision->tp != g.llm.tp || g.vision->cp != g.llm.cp);
         return text(differs ? "another grid" : "as llm");
       },
       [](Grid& g, const std::string& value) {
         g.vision.reset();
         if (value != "as llm") g.vision = GridModule{};
       }},
      factor_of_vision("vision tp", &GridModule::tp, &GridModule::cp),
      factor_of_vision("vision cp", &GridModule::cp, &GridModule::tp),
  };
}

using Pair = std::set<Setting>;

Pair make_pair_of(const Setting& a, const Setting& b) {
  return {a, b};
}

std::set<Pair> pairs_of(const Grid& grid, const std::vector<Factor>& all) {
  std::set<Pair> pairs;
  for (size_t a = 0; a < all.size(); ++a)
    for (size_t b = a + 1; b < all.size(); ++b)
      pairs.insert(
          make_pair_of({all[a].name, all[a].value_of(grid)}, {all[b].name, all[b].value_of(grid)}));
  return pairs;
}

/// Whether the plan takes some grid with all settings of `pair`; the rest is tried out.
bool can_exist(const Pair& pair, const std::vector<Factor>& all, size_t next, Grid& grid) {
  if (grid.ranks() > kMostRanks) return false;
  if (next == all.size()) {
    for (const Setting& setting : pair)  // one may have lost its meaning
      for (const Factor& factor : all)
        if (factor.name == setting.first && factor.value_of(grid) != setting.second) return false;
    for (int heads : {4, 6, 8}) {
      grid.heads = heads;
      if (refusal(grid) == "accepted") return true;
    }
    return false;
  }
  const Factor& factor = all[next];
  for (const std::string& value : factor.values) {
    const auto fixed = std::find_if(pair.begin(), pair.end(), [&](const Setting& setting) {
      return setting.first == factor.name;
    });
    if (fixed != pair.end() && fixed->second != value) continue;
    const Grid before = grid;
    factor.set(grid, value);
    if (can_exist(pair, all, next + 1, grid)) return true;
    grid = before;
  }
  return false;
}

std::string describe(const Pair& pair) {
  std::string text;
  for (const auto& [name, value] : pair) text += name + " = " + value + "; ";
  return text;
}

TEST(GridTable, EveryGridPlans) {
  for (const Grid& grid : grids()) {
    EXPECT_EQ(refusal(grid), "accepted") << grid.name();
    EXPECT_LE(grid.ranks(), kMostRanks) << grid.name();
  }
}

TEST(GridTable, NamesAreUnique) {
  std::set<std::string> names;
  for (const Grid& grid : grids()) EXPECT_TRUE(names.insert(grid.name()).second) << grid.name();
}

TEST(GridTable, AnyTwoSettingsThatGoTogetherDoSoInOneOfThem) {
  const std::vector<Factor> all = factors();
  std::set<Pair> covered;
  for (const Grid& grid : grids()) covered.merge(pairs_of(grid, all));
  int missing = 0, impossible = 0;
  for (size_t a = 0; a < all.size(); ++a)
    for (size_t b = a + 1; b < all.size(); ++b)
      for (const std::string& first : all[a].values)
        for (const std::string& second : all[b].values) {
          const Pair pair = make_pair_of({all[a].name, first}, {all[b].name, second});
          if (covered.contains(pair)) continue;
          Grid grid;
          if (can_exist(pair, all, 0, grid)) {
            ++missing;
            ADD_FAILURE() << "missing: " << describe(pair) << "as in " << grid.name();
          } else {
            ++impossible;
          }
        }
  EXPECT_EQ(missing, 0);
  EXPECT_GT(impossible, 0) << "tp 4 x cp 3 does not fit 8 ranks";
}

TEST(GridTable, ASearchFindsWhatCanExist) {
  const std::vector<Factor> all = factors();
  const auto search = [&](const Setting& a, const Setting& b, Grid grid = {}) {
    return can_exist(make_pair_of(a, b), all, 0, grid) ? grid.heads : 0;
  };
  EXPECT_EQ(search({"cp_mode", "ulysses"}, {"cp", "3"}), 6);
  EXPECT_EQ(search({"cp_mode", "ulysses"}, {"tp", "4"}), 8);
  EXPECT_EQ(search({"tp", "4"}, {"cp", "4"}), 0) << "16 ranks";
  EXPECT_EQ(search({"cp_mode", "ulysses_ring"}, {"cp", "2"}), 0);
  EXPECT_EQ(search({"vision tp", "another"}, {"tp", "1"}), 4);
  EXPECT_EQ(search({"vision tp", "another"}, {"vision cp", "another"}), 4);
  EXPECT_EQ(search({"vision tp", "another"}, {"vision", "as llm"}), 0);
}

TEST(GridTable, AudioLiesOtherwiseThanImagesInSome) {
  int other_tp = 0, other_cp = 0, fewer_cp = 0;
  for (const Grid& grid : grids()) {
    const MeshShape mesh = mesh_of(grid);
    const ModuleGrid &vision = mesh.grid("vision"), &audio = mesh.grid("audio");
    EXPECT_EQ(audio.tp != vision.tp || audio.cp != vision.cp, grid.audio.has_value())
        << grid.name();
    other_tp += audio.tp != vision.tp;
    other_cp += audio.cp > vision.cp;
    fewer_cp += audio.cp < vision.cp;
  }
  EXPECT_GE(other_tp, 2);
  EXPECT_GE(other_cp, 1);
  EXPECT_GE(fewer_cp, 1);
}

TEST(GridTable, RefusesTheRestWithASentence) {
  for (const RefusedGrid& refused : refused_grids()) {
    Options deck;
    refused.set(deck);
    const std::string config =
        refused.gpt2 ? tiny_gpt2_config() : tiny_llava_config({.vision_heads = 4});
    const std::string said = refusal(deck, config, refused.ranks);
    EXPECT_NE(said.find(refused.sentence), std::string::npos) << refused.name << ": " << said;
  }
}

}  // namespace
}  // namespace zea::testing::test_grid_table
