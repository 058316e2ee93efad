// SPDX-License-Identifier: Apache-2.0
// Facts about a host, reported before it is known whether a GPU is requested.
#include <ATen/Context.h>
#include <dlfcn.h>
#include <gtest/gtest.h>

#include "preflight/measure_nodes.hpp"
#include "support/files.hpp"

namespace zea::test_facts_of_host {
namespace {

TEST(FactsOfHost, LeaveLibtorchsCudaPartToBeLoaded) {
  EXPECT_EQ(facts_of_host(1, "0.1.0").libtorch.substr(0, 2), "2.");
  if (dlopen("libtorch_cuda.so", RTLD_NOW | RTLD_GLOBAL) == nullptr) GTEST_SKIP() << dlerror();
  EXPECT_TRUE(at::globalContext().hasCUDART());
}

TEST(FactsOfHost, MemoryIsWhatControlGroupsAllow) {
  const TemporaryDirectory folder;
  const auto limit_within = [&](const std::string& groups) {
    write_bytes(folder / "groups", groups);
    return memory_limit(1000, folder / "groups", folder / "mount");
  };
  std::filesystem::create_directories(folder / "mount/job/step");
  std::filesystem::create_directories(folder / "mount/memory/job/step");
  EXPECT_EQ(limit_within(""), 1000);
  EXPECT_EQ(limit_within("0::/job/step\n"), 1000);
  write_bytes(folder / "mount/job/step/memory.max", "max\n");
  write_bytes(folder / "mount/job/memory.max", "600\n");
  EXPECT_EQ(limit_within("0::/job/step\n"), 600);
  EXPECT_EQ(limit_within("0::/\n"), 1000);
  write_bytes(folder / "mount/memory.max", "700\n");
  EXPECT_EQ(limit_within("0::/\n"), 700);
  EXPECT_EQ(limit_within("0::/of/the/host\n"), 700) << "as a container sees it";
  write_bytes(folder / "mount/memory/job/step/memory.limit_in_bytes", "500\n");
  write_bytes(folder / "mount/memory/job/memory.limit_in_bytes", "9223372036854771712\n");
  EXPECT_EQ(limit_within("9:cpu,cpuacct:/job\n7:memory:/job/step\n"), 500);
  EXPECT_EQ(memory_limit(1000, folder / "none", folder / "mount"), 1000);
}

}  // namespace
}  // namespace zea::test_facts_of_host
