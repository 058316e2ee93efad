// SPDX-License-Identifier: Apache-2.0
// Which versions let the communicators of a GPU wait for each other.
#include "zea/comm/launch_order.hpp"

#include <gtest/gtest.h>

namespace zea::test_launch_order {
namespace {

constexpr LaunchVersions kNew{.nccl = 22600, .cuda_runtime = 12030, .cuda_driver = 12030};

bool names(const std::string& fault, const std::string& words) {
  return fault.find(words) != std::string::npos;
}

TEST(LaunchOrder, NewVersionsRunCommunicatorsSideBySide) {
  EXPECT_EQ(launch_order_fault(kNew), "");
}

TEST(LaunchOrder, AnOlderDriverOrRuntimeIsNamed) {
  LaunchVersions versions = kNew;
  versions.cuda_driver = 12020;
  EXPECT_TRUE(names(launch_order_fault(versions), "driver's 12.2 and the CUDA runtime's 12.3"));

  versions = kNew;
  versions.cuda_runtime = 11080;
  EXPECT_TRUE(names(launch_order_fault(versions), "driver's 12.3 and the CUDA runtime's 11.8"));
}

TEST(LaunchOrder, AnNcclThatDoesNotOrderIsNamed) {
  LaunchVersions versions = kNew;
  versions.nccl = 22505;
  EXPECT_TRUE(names(launch_order_fault(versions), "NCCL 2.25 "));
}

TEST(LaunchOrder, WhoTurnsTheOrderOffIsLeftAlone) {
  EXPECT_EQ(launch_order_fault({.in_program_order = false}), "");
}

}  // namespace
}  // namespace zea::test_launch_order
