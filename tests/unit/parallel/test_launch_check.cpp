// SPDX-License-Identifier: Apache-2.0
// Versions of NCCL and CUDA that plans need, and the error if they are older.
#include "parallel/device.hpp"

#include <gtest/gtest.h>

#include <functional>

#include "support/tiny_llava.hpp"

namespace zea::test_launch_check {
namespace {

constexpr LaunchVersions kNew{.nccl = 22600, .cuda_runtime = 12030, .cuda_driver = 12030};
constexpr LaunchVersions kOldNccl{.nccl = 22505, .cuda_runtime = 12030, .cuda_driver = 12030};
constexpr LaunchVersions kOldCuda{.nccl = 22600, .cuda_runtime = 12010, .cuda_driver = 12010};
constexpr LaunchVersions kUnordered{
    .nccl = 22600, .cuda_runtime = 12030, .cuda_driver = 12030, .in_program_order = false};

Plan plan_of(int ranks, const std::function<void(Options&)>& set) {
  Options options;
  options.data.row_tokens = 16;
  options.schedule.global_batch = 8;
  set(options);
  return make_plan(options, testing::tiny_llava_config(), ranks);
}

Plan fsdp(int ranks, int tp = 1) {
  return plan_of(ranks, [&](Options& options) {
    for (const char* module : {"vision", "llm"}) options.meshes[module].strategy = "full_shard";
    options.meshes["llm"].tp = tp;
  });
}

Plan in_stages() {
  return plan_of(2, [](Options& options) {
    options.meshes["llm"].pp = 2;
    for (const char* module : {"vision", "llm"}) options.meshes[module].strategy = "no_shard";
  });
}

void expect_fault(const Plan& plan, const LaunchVersions& versions,
                  const std::vector<std::string>& parts) {
  const std::string fault = launch_order_fault(plan, versions);
  for (const std::string& part : parts)
    EXPECT_NE(fault.find(part), std::string::npos) << "found: " << fault;
}

Plan ddp(int ranks) {
  return plan_of(ranks, [](Options& options) {
    for (const char* module : {"vision", "llm"}) options.meshes[module].strategy = "no_shard";
  });
}

TEST(LaunchCheck, OneCommunicatorNeedsNoOrder) {
  for (const Plan& plan : {fsdp(1), ddp(2)})
    for (const LaunchVersions& versions : {kNew, kOldNccl, kOldCuda, kUnordered})
      EXPECT_EQ(launch_order_fault(plan, versions), "");
}

TEST(LaunchCheck, FsdpWithTpNeedsAnNcclThatOrders) {
  const Plan plan = fsdp(4, 2);
  EXPECT_EQ(launch_order_fault(plan, kNew), "");
  EXPECT_EQ(launch_order_fault(plan, kOldCuda), "") << "one after the other gets to the end";
  expect_fault(
      plan, kOldNccl,
      {"several groups (llm.tp, ", "llm's shards", "NCCL 2.25 ", "take NCCL 2.26", "tp = 1"});
  expect_fault(plan, kUnordered, {"NCCL_LAUNCH_ORDER_IMPLICIT=0", "unset it"});
}

/// Parameters are gathered while gradients are reduced, by another communicator.
TEST(LaunchCheck, FsdpAloneNeedsItToo) {
  const Plan plan = fsdp(2);
  EXPECT_EQ(launch_order_fault(plan, kNew), "");
  EXPECT_EQ(launch_order_fault(plan, kOldCuda), "");
  expect_fault(plan, kOldNccl,
               {"'s shards, ", "'s reductions", "NCCL 2.25 ", "strategy = \"no_shard\""});
}

TEST(LaunchCheck, GraphsNeedAnNcclThatMixesThemWithOtherCalls) {
  const auto graphs = [](int ranks) {
    return plan_of(ranks, [](Options& options) {
      options.run.device = DeviceKind::Cuda;
      options.run.cuda_graphs = 4;
    });
  };
  LaunchVersions versions = kNew;
  EXPECT_EQ(launch_order_fault(graphs(2), versions), "");
  versions.mixes_graphs = false;
  expect_fault(graphs(2), versions,
               {"run.cuda_graphs = 4", "NCCL_GRAPH_MIXING_SUPPORT=0", "unset"});
  EXPECT_EQ(launch_order_fault(graphs(1), versions), "");
  EXPECT_EQ(launch_order_fault(ddp(2), versions), "");
}

TEST(LaunchCheck, AHybridNeedsItToo) {
  const Plan plan = plan_of(4, [](Options& options) {
    options.mesh.dp_replicate = 2;
    for (const char* module : {"vision", "llm"}) options.meshes[module].strategy = "hybrid_shard";
  });
  EXPECT_EQ(launch_order_fault(plan, kOldCuda), "");
  expect_fault(plan, kOldNccl, {"'s shards", "'s replicas", "NCCL 2.25 "});
}

TEST(LaunchCheck, APipelineNeedsCommunicatorsSideBySide) {
  const Plan plan = in_stages();
  EXPECT_EQ(launch_order_fault(plan, kNew), "");
  expect_fault(plan, kOldCuda, {"2 stage groups", "driver's 12.1", "take 12.3", "pp = 1"});
  expect_fault(plan, kOldNccl, {"NCCL 2.25 "});
  expect_fault(plan, kUnordered, {"unset it"});
}

TEST(LaunchCheck, TheHostNeedsNothing) {
  check_launch_order(in_stages(), at::kCPU);
}

}  // namespace
}  // namespace zea::test_launch_check
