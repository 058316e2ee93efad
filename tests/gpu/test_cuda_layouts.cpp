// SPDX-License-Identifier: Apache-2.0
// Grids and pipelines of the tables on GPUs, in fp32 and bf16, against one rank of the host in
// fp64. Skipped without a GPU, but for ZEA_TESTED_DEVICE = cpu, which shows on
// the host that fp32 is within these bounds. ZEA_DEVICE_STRIDE = n tries every n-th layout, and
// ZEA_LAYOUTS, a regular expression, only those of whose names it finds a part.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <regex>

#include "support/bf16_bounds.hpp"
#include "support/mpi_main.hpp"
#include "support/open_gpu.hpp"
#include "support/sampled_layouts.hpp"

namespace zea::testing::test_cuda_layouts {
namespace {

size_t stride(size_t usual) {
  const char* asked = std::getenv("ZEA_DEVICE_STRIDE");
  return asked != nullptr ? std::strtoul(asked, nullptr, 10) : usual;
}

bool is_on_host() {
  const char* asked = std::getenv("ZEA_TESTED_DEVICE");
  return asked != nullptr && std::string(asked) == "cpu";
}

std::vector<SampledLayout> chosen(std::vector<SampledLayout> layouts) {
  if (const char* asked = std::getenv("ZEA_LAYOUTS")) {
    const std::regex part(asked);
    std::erase_if(layouts, [&](const SampledLayout& layout) {
      return !std::regex_search(layout.name, part);
    });
  }
  if (testing::world().rank() == 0) std::printf("%zu layouts\n", layouts.size());
  return layouts;
}

/// Bound for losses: fp32 relative to fp64, after a few steps of AdamW, which divides by values
/// near zero.
constexpr double kSameLoss = 1e-4;
/// Bounds for a gradient: relative to the largest element of its tensor, plus relative to that of
/// all tensors, for tensors that would be zero without rounding.
constexpr double kSameGradient = 1e-4, kSameZero = 1e-6;

double largest(const std::vector<double>& values) {
  double most = 0;
  for (const double value : values) most = std::max(most, std::abs(value));
  return most;
}

void expect_near_in_fp32(const ComparedResult& got, const ComparedResult& exact) {
  ASSERT_EQ(got.losses.size(), exact.losses.size());
  for (size_t step = 0; step < exact.losses.size(); ++step)
    EXPECT_NEAR(got.losses[step], exact.losses[step], kSameLoss * exact.losses[step])
        << "step " << step;
  double most = 0;
  for (const auto& [name, values] : exact.first_moment) most = std::max(most, largest(values));
  for (const auto& [name, values] : exact.first_moment)
    EXPECT_LE(largest_distance(got.first_moment.at(name), values),
              kSameGradient * largest(values) + kSameZero * most)
        << "gradient of " << name;
}

class CudaLayouts : public ::testing::Test {
 protected:
  void SetUp() override {
    if (is_on_host()) return;
    if (num_cuda_devices() == 0) GTEST_SKIP() << "no GPU";
    device_ = open_gpu(testing::world());
  }

  /// Compares every layout in `preset` with one rank of the host in fp64 and in `preset`.
  void sweep_in(const char* preset, const std::vector<SampledLayout>& sampled,
                void (*expect)(const ComparedResult& got, const ComparedResult& exact,
                               const ComparedResult& one_rank)) {
    const std::vector<SampledLayout> layouts = chosen(sampled);
    ASSERT_FALSE(layouts.empty()) << "ZEA_LAYOUTS names none of the layouts";
    sweep_on_device(
        layouts, device_, collectives_of(device_),
        [&](TinyRunOptions& options) { options.deck.precision.preset = preset; },
        [&](const Communicator& alone, const SampledLayout& layout, const ComparedResult& got) {
          SampledLayout::Run one = layout.one_rank();
          const ComparedResult exact =
              run_compared(alone, make_mpi_collectives, one.dataset, one.options);
          one.options.deck.precision.preset = preset;
          expect(got, exact, run_compared(alone, make_mpi_collectives, one.dataset, one.options));
        });
  }

  at::Device device_ = at::kCPU;
};

void expect_fp32(const ComparedResult& got, const ComparedResult& exact, const ComparedResult&) {
  expect_near_in_fp32(got, exact);
}

void expect_bf16(const ComparedResult& got, const ComparedResult& exact,
                 const ComparedResult& one_rank) {
  expect_near_in_bf16(got.losses, one_rank.losses, exact.losses);
  expect_gradients_near_in_bf16(got.first_moment, one_rank.first_moment, exact.first_moment);
}

TEST_F(CudaLayouts, GridsInFp32) {
  sweep_in("fp32", sampled_grids(stride(16)), expect_fp32);
}

TEST_F(CudaLayouts, PipelinesInFp32) {
  sweep_in("fp32", sampled_pipelines(stride(9)), expect_fp32);
}

TEST_F(CudaLayouts, GridsInBf16) {
  std::vector<SampledLayout> layouts = sampled_grids(stride(20));
  // Rounded scores choose other experts, so errors of mixtures have no such bound.
  std::erase_if(layouts, [](const SampledLayout& layout) {
    return layout.name.find("experts") != std::string::npos;
  });
  sweep_in("bf16", layouts, expect_bf16);
}

TEST_F(CudaLayouts, PipelinesInBf16) {
  sweep_in("bf16", sampled_pipelines(stride(25)), expect_bf16);
}

}  // namespace
}  // namespace zea::testing::test_cuda_layouts
