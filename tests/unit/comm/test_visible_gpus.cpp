// SPDX-License-Identifier: Apache-2.0
// The GPU that each rank of a node takes, however a launcher shows them.
#include "comm/visible_gpus.hpp"

#include <gtest/gtest.h>

namespace zea::test_visible_gpus {
namespace {

VisibleGpu gpu(const std::string& id, bool is_near = true) {
  return {id, "a GPU", is_near};
}

TEST(VisibleGpus, RanksThatSeeAllTakeThemInOrder) {
  const std::vector<VisibleGpu> all = {gpu("a"), gpu("b"), gpu("c")};
  EXPECT_EQ(deal_gpus({all, all, all}), (std::vector<int>{0, 1, 2}));
}

TEST(VisibleGpus, RanksThatSeeOneEachTakeIt) {
  EXPECT_EQ(deal_gpus({{gpu("a")}, {gpu("b")}, {gpu("c")}}), (std::vector<int>{0, 0, 0}));
}

TEST(VisibleGpus, RanksThatSeeThoseOfTheirSocketShareThemOut) {
  const std::vector<VisibleGpu> left = {gpu("a"), gpu("b")}, right = {gpu("c"), gpu("d")};
  EXPECT_EQ(deal_gpus({left, right, left, right}), (std::vector<int>{0, 0, 1, 1}));
}

TEST(VisibleGpus, ARankMakesRoomForOneThatSeesLess) {
  EXPECT_EQ(deal_gpus({{gpu("a"), gpu("b")}, {gpu("a")}}), (std::vector<int>{1, 0}));
}

TEST(VisibleGpus, TheNearOneIsTakenBeforeTheFirst) {
  const std::vector<VisibleGpu> near_b = {gpu("a", false), gpu("b")};
  const std::vector<VisibleGpu> near_a = {gpu("a"), gpu("b", false)};
  EXPECT_EQ(deal_gpus({near_b, near_a}), (std::vector<int>{1, 0}));
  EXPECT_EQ(deal_gpus({near_a, near_a}), (std::vector<int>{0, 1}));
}

TEST(VisibleGpus, ARankForWhichNoneIsLeftGetsNone) {
  EXPECT_EQ(deal_gpus({{gpu("a")}, {gpu("a")}}), (std::vector<int>{0, -1}));
  EXPECT_EQ(deal_gpus({{}, {gpu("a")}}), (std::vector<int>{-1, 0}));
}

TEST(VisibleGpus, RanksShareOneWhereTheyMay) {
  const std::vector<VisibleGpu> both = {gpu("a"), gpu("b")};
  EXPECT_EQ(deal_gpus({both, both, both, both}, 2), (std::vector<int>{0, 1, 0, 1}));
  EXPECT_EQ(deal_gpus({both, both, both}, 2), (std::vector<int>{0, 1, 0}));
  EXPECT_EQ(deal_gpus({{gpu("a")}, {gpu("a")}, {gpu("a")}}, 2), (std::vector<int>{0, 0, -1}));
  EXPECT_EQ(deal_gpus({{}, {gpu("a")}}, 2), (std::vector<int>{-1, 0}));
}

TEST(VisibleGpus, RanksShareNoneWhileAFarOneIsIdle) {
  const std::vector<VisibleGpu> two = {gpu("a"), gpu("b", false)};
  EXPECT_EQ(deal_gpus({two, two}, 2), (std::vector<int>{0, 1}));
  EXPECT_EQ(deal_gpus({two, two, two}, 2), (std::vector<int>{0, 1, 0}));
  const std::vector<VisibleGpu> four = {gpu("a"), gpu("b"), gpu("c", false), gpu("d", false)};
  EXPECT_EQ(deal_gpus({four, four, four, four}, 2), (std::vector<int>{0, 1, 2, 3}));
}

TEST(VisibleGpus, WhoSharesMakesRoomForThoseThatSeeLess) {
  const std::vector<VisibleGpu> both = {gpu("a"), gpu("b")}, one = {gpu("a")};
  EXPECT_EQ(deal_gpus({both, both, one, one}, 2), (std::vector<int>{1, 1, 0, 0}));
}

}  // namespace
}  // namespace zea::test_visible_gpus
