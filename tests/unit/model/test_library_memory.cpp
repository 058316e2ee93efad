// SPDX-License-Identifier: Apache-2.0
// Memory of libtorch's attention, which devices run: it equals the plan's declaration. The test
// counts it on the host, where it runs for halves, which zea's kernels do not take and which have
// the size of bf16.
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "layout/visibility.hpp"
#include "model/attention.hpp"
#include "parallel/device_memory.hpp"
#include "spec/operation_needs.hpp"
#include "support/kernel_test.hpp"

namespace zea::test_library_memory {
namespace {

using namespace detail;

constexpr int64_t kHeads = 32;
constexpr double kTolerance = 0.05;
/// The host's kernels have blocks of queries and scores for each thread.
constexpr int64_t kBlocks = int64_t{256} << 10;

const ElementBytes kHost({.param = DType::BFloat16});
const ElementBytes kDevice({.param = DType::BFloat16, .on_device = true});

/// `undeclared`: memory that the host takes beyond its blocks, and a device does not.
void expect_near(int64_t declared, int64_t counted, const char* what, int64_t undeclared = 0) {
  const auto tolerance = static_cast<int64_t>(kTolerance * static_cast<double>(counted));
  EXPECT_LE(declared, counted + tolerance) << what;
  EXPECT_GE(declared, counted - tolerance - kBlocks - undeclared) << what;
}

class LibraryMemory : public testing::KernelTest<> {
 protected:
  static at::Tensor halves(at::IntArrayRef shape) { return at::full(shape, 0.01, at::kHalf); }
  /// The most that `act` takes, beyond the memory before it.
  template <class Act>
  int64_t peak_of(Act act) {
    const int64_t before = bytes_.now();
    bytes_.reset_peak();
    act();
    return bytes_.peak() - before;
  }

  TensorBytes bytes_;
};

/// As many heads of keys as of queries, and fewer.
TEST_F(LibraryMemory, SlicesTakeWhatIsDeclared) {
  const std::vector<Segment> segments{{0, 110}, {110, 105}, {215, 95}, {310, 40}};
  constexpr int64_t kTokens = 350;
  for (const int64_t key_values : {kHeads, kHeads / 4}) {
    const HeadShape heads{kHeads, key_values, 64};
    const FunctionMemory declared =
        context_attention_memory({kTokens, kTokens, 0, false}, heads, kDevice);
    const AttentionMask mask(segments, true, at::kCPU);
    const at::Tensor qkv = halves({kTokens, kHeads + 2 * key_values, 64}).set_requires_grad(true);

    const int64_t before = bytes_.now();
    at::Tensor y;
    const int64_t forward = peak_of([&] { y = attention(qkv, mask, kHeads, key_values); });
    const int64_t saved = bytes_.now() - before - declared.output;
    const at::Tensor dy = at::ones_like(y);
    const int64_t backward = peak_of([&] { torch::autograd::backward({y}, {dy}); });

    EXPECT_EQ(declared.output, static_cast<int64_t>(y.nbytes()));
    EXPECT_LE(forward, declared.forward_peak + kBlocks);
    expect_near(declared.saved, saved, "saved");
    EXPECT_LE(backward, declared.backward_working + kBlocks);
  }
}

/// The memory beyond that of our own kernels for gathered keys.
TEST_F(LibraryMemory, GatheredContextSumsInWideCopies) {
  const int64_t own = 160, all = 320, dim = 64;
  for (const int64_t key_values : {kHeads, kHeads / 4}) {
    const ContextSizes context{own, own, all, false};
    const HeadShape heads{kHeads, key_values, dim};
    const FunctionMemory device = context_attention_memory(context, heads, kDevice);
    const FunctionMemory host = context_attention_memory(context, heads, kHost);
    const AttentionInputs in{halves({own, kHeads, dim}), halves({all, key_values, dim}),
                             halves({all, key_values, dim})};
    const AttentionSums sums = unwritten_sums(in.q);
    const AttentionGradients gradients{at::empty_like(in.q), at::empty_like(in.k),
                                       at::empty_like(in.v)};
    const AttentionMask slices({{0, own, 0, all, SliceMask::None}});
    const at::Tensor dout = halves({own, kHeads, dim});

    const int64_t forward = peak_of([&] { write_attention(sums, in, slices); });
    const int64_t backward =
        peak_of([&] { write_attention_gradients(gradients, in, dout, sums, slices); });

    // To add halves to floats the host converts them first.
    const auto converted = [](const at::Tensor& x) { return 4 * x.numel(); };
    expect_near(device.forward_peak - host.forward_peak, forward, "forward", converted(in.q));
    expect_near(device.backward_working - host.backward_working, backward, "backward",
                std::max(converted(in.q), converted(in.k)));
  }
}

}  // namespace
}  // namespace zea::test_library_memory
