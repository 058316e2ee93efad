// SPDX-License-Identifier: Apache-2.0
// Measures the cost of splitting a backward, as zero-bubble pipelines do: the input gradients of
// all blocks of a stage, and later the weight gradients, against both at once. The two take turns.
//   bench_deferred_backward [BLOCKS] [HIDDEN] [TOKENS] [ROUNDS]
// Prints a line of JSON per type: medians in seconds and the ratio (1 is for nothing).
#include <ATen/Parallel.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>

#include "kernels/flat_kernels.hpp"
#include "model/attention.hpp"
#include "model/attention_mask.hpp"
#include "model/functions.hpp"
#include "model/parameter.hpp"

namespace {

using namespace zea;
using at::Tensor;
using Clock = std::chrono::steady_clock;

struct Sizes {
  int64_t blocks = 4, hidden = 512, tokens = 512, rounds = 15;
};

constexpr NormSpec kNorm{NormKind::Rms};

/// A Llama decoder block on one segment of text.
class Block {
 public:
  Block(const Sizes& sizes, at::ScalarType type) : sizes_(sizes), type_(type) {
    const int64_t hidden = sizes.hidden, width = 4 * hidden;
    for (const std::vector<int64_t>& shape : std::vector<std::vector<int64_t>>{{hidden},
                                                                               {3 * hidden, hidden},
                                                                               {hidden, hidden},
                                                                               {hidden},
                                                                               {2 * width, hidden},
                                                                               {hidden, width}})
      make(shape);
    mask_ = AttentionMask({{0, sizes.tokens}}, true, at::kCPU);
  }

  Tensor forward(const Tensor& x) {
    const int64_t heads = sizes_.hidden / 64;
    const Tensor qkv = linear(norm(x, all_[0].get(), nullptr, kNorm), *all_[1], nullptr)
                           .unflatten(1, {3 * heads, 64});
    const Tensor h = x + linear(attention(qkv, mask_, heads, heads), *all_[2], nullptr);
    const Tensor inner =
        gated(linear(norm(h, all_[3].get(), nullptr, kNorm), *all_[4], nullptr), Activation::Silu);
    return h + linear(inner, *all_[5], nullptr);
  }

  std::vector<Parameter*> parameters() const {
    std::vector<Parameter*> all;
    for (const auto& one : all_) all.push_back(one.get());
    return all;
  }

 private:
  void make(const std::vector<int64_t>& shape) {
    all_.push_back(std::make_unique<Parameter>("weight", shape, true, at::kCPU));
    all_.back()->set_value(at::randn(shape).mul_(0.02).to(type_));
    all_.back()->set_gradient(at::zeros(shape));
  }

  Sizes sizes_;
  at::ScalarType type_;
  AttentionMask mask_;  // which functions point at
  std::vector<std::unique_ptr<Parameter>> all_;
};

/// The blocks of a stage, each with a graph of its own, as the engine runs them.
class Stage {
 public:
  Stage(const Sizes& sizes, at::ScalarType type)
      : x_(at::randn({sizes.tokens, sizes.hidden}).to(type)) {
    for (int64_t i = 0; i < sizes.blocks; ++i)
      blocks_.push_back(std::make_unique<Block>(sizes, type));
  }

  void forward() {
    inputs_.clear();
    outputs_.clear();
    Tensor next = x_;
    for (auto& block : blocks_) {
      inputs_.push_back(next.detach().set_requires_grad(true));
      outputs_.push_back(block->forward(inputs_.back()));
      next = outputs_.back();
    }
  }

  void backward() {
    Tensor gradient = x_;
    for (size_t i = blocks_.size(); i-- > 0;) gradient = backward(i, gradient);
  }

  void backward_input(DeferredGradients& later) {
    Tensor gradient = x_;
    for (size_t i = blocks_.size(); i-- > 0;) {
      const DeferringGradients deferring(blocks_[i]->parameters(), later);
      gradient = backward(i, gradient);
    }
  }

 private:
  Tensor backward(size_t block, const Tensor& gradient) {
    outputs_[block].backward(gradient);
    outputs_[block].reset();
    return inputs_[block].grad();
  }

  std::vector<std::unique_ptr<Block>> blocks_;
  Tensor x_;
  std::vector<Tensor> inputs_, outputs_;
};

template <class Work>
double seconds_of(Work work) {
  const Clock::time_point start = Clock::now();
  work();
  return std::chrono::duration<double>(Clock::now() - start).count();
}

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return values[values.size() / 2];
}

void measure(const Sizes& sizes, at::ScalarType type) {
  Stage stage(sizes, type);
  std::vector<double> whole, input, weight, forward;
  for (int64_t round = -2; round < sizes.rounds; ++round) {  // two to warm up
    const double forward_seconds = seconds_of([&] { stage.forward(); });
    const double whole_seconds = seconds_of([&] { stage.backward(); });
    stage.forward();
    DeferredGradients later;
    const double input_seconds = seconds_of([&] { stage.backward_input(later); });
    const double weight_seconds = seconds_of([&] { later.run(); });
    if (round < 0) continue;
    forward.push_back(forward_seconds);
    whole.push_back(whole_seconds);
    input.push_back(input_seconds);
    weight.push_back(weight_seconds);
  }
  std::printf(
      "{\"type\": \"%s\", \"forward\": %.5f, \"backward\": %.5f, \"backward_input\": %.5f, "
      "\"backward_weight\": %.5f, \"ratio\": %.3f}\n",
      at::toString(type), median(forward), median(whole), median(input), median(weight),
      (median(input) + median(weight)) / median(whole));
}

}  // namespace

int main(int argc, char** argv) {
  const auto argument = [&](int i, int64_t otherwise) {
    return argc > i ? std::atoll(argv[i]) : otherwise;
  };
  Sizes sizes;
  sizes = {argument(1, sizes.blocks), argument(2, sizes.hidden), argument(3, sizes.tokens),
           argument(4, sizes.rounds)};
  at::set_num_threads(1);
  const KernelRuntime runtime;
  measure(sizes, at::kFloat);
  measure(sizes, at::kBFloat16);
}
