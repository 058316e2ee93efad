// SPDX-License-Identifier: Apache-2.0
// Attention on a GPU against its definition. Skipped without one.
#include "support/attention_on_device.hpp"
#include "support/mpi_main.hpp"
#include "support/open_gpu.hpp"

namespace zea::testing::test_device_attention {
namespace {

TEST(DeviceAttention, IsItsDefinition) {
  if (num_cuda_devices() == 0) GTEST_SKIP() << "no GPU";
  expect_attention_of_all_kinds(open_gpu(world()));
}

}  // namespace
}  // namespace zea::testing::test_device_attention
