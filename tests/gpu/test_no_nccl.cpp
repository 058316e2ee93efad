// SPDX-License-Identifier: Apache-2.0
// The error of a build without NCCL that is asked for NCCL.
#include <gtest/gtest.h>

#include "core/error.hpp"
#include "support/mpi_main.hpp"

namespace zea::test_no_nccl {
namespace {

TEST(NoNccl, IsRefusedWithAnError) {
  EXPECT_FALSE(has_nccl());
  EXPECT_EQ(num_cuda_devices(), 0);
  EXPECT_THROW(make_nccl_collectives(testing::world().communicator(), nullptr), CommError);
}

}  // namespace
}  // namespace zea::test_no_nccl
