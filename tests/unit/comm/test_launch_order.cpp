// SPDX-License-Identifier: Apache-2.0
// Versions that let the communicators of a GPU wait for each other.
#include "comm/launch_order.hpp"

#include <gtest/gtest.h>

namespace zea::test_launch_order {
namespace {

using enum CallOrder;

constexpr LaunchVersions kNew{.nccl = 22600, .cuda_runtime = 12030, .cuda_driver = 12030};

bool names(const std::string& fault, const std::string& words) {
  return fault.find(words) != std::string::npos;
}

TEST(LaunchOrder, NewVersionsRunCommunicatorsSideBySide) {
  for (const CallOrder order : {OneCommunicator, SameOnAllRanks, OfEachRank})
    EXPECT_EQ(launch_order_fault(kNew, order), "");
}

TEST(LaunchOrder, AnOlderDriverOrRuntimeIsNamed) {
  LaunchVersions versions = kNew;
  versions.cuda_driver = 12020;
  EXPECT_TRUE(
      names(launch_order_fault(versions, OfEachRank), "driver's 12.2 and the CUDA runtime's 12.3"));

  versions = kNew;
  versions.cuda_runtime = 11080;
  EXPECT_TRUE(
      names(launch_order_fault(versions, OfEachRank), "driver's 12.3 and the CUDA runtime's 11.8"));
}

/// One after the other, in the order that all ranks have.
TEST(LaunchOrder, AnOlderDriverRunsWhatAllRanksCallInTheSameOrder) {
  LaunchVersions versions = kNew;
  versions.cuda_driver = versions.cuda_runtime = 12010;
  EXPECT_EQ(launch_order_fault(versions, SameOnAllRanks), "");
}

TEST(LaunchOrder, AnNcclThatDoesNotOrderIsNamed) {
  LaunchVersions versions = kNew;
  versions.nccl = 22505;
  for (const CallOrder order : {SameOnAllRanks, OfEachRank})
    EXPECT_TRUE(names(launch_order_fault(versions, order), "NCCL 2.25 "));
  EXPECT_EQ(launch_order_fault(versions, OneCommunicator), "");
}

TEST(LaunchOrder, AnOrderThatIsTurnedOffIsNamed) {
  LaunchVersions versions = kNew;
  versions.in_program_order = false;
  for (const CallOrder order : {SameOnAllRanks, OfEachRank})
    EXPECT_TRUE(names(launch_order_fault(versions, order), "NCCL_LAUNCH_ORDER_IMPLICIT=0"));
  EXPECT_EQ(launch_order_fault(versions, OneCommunicator), "");
}

}  // namespace
}  // namespace zea::test_launch_order
