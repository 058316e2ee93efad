// SPDX-License-Identifier: Apache-2.0
// What is told of a host, before it is known whether a GPU is asked for.
#include <ATen/Context.h>
#include <dlfcn.h>
#include <gtest/gtest.h>

#include "preflight/rank_facts.hpp"

namespace zea::test_facts_of_host {
namespace {

TEST(FactsOfHost, LeaveLibtorchsCudaPartToBeLoaded) {
  EXPECT_EQ(facts_of_host(1, "0.1.0").libtorch.substr(0, 2), "2.");
  if (dlopen("libtorch_cuda.so", RTLD_NOW | RTLD_GLOBAL) == nullptr) GTEST_SKIP() << dlerror();
  EXPECT_TRUE(at::globalContext().hasCUDART());
}

}  // namespace
}  // namespace zea::test_facts_of_host
