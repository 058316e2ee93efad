// SPDX-License-Identifier: Apache-2.0
// A mixer with the gated delta rule, forward and backward, on one thread in fp32, at the sizes of
// Qwen3.5-0.8B: over its attention layer of the same width, and at several lengths. Times are of
// the thread, so that other load disturbs them little.
//   bench_delta [ROUNDS]
//   bench_delta turns: answers each line of standard input with the seconds of one run of the mixer
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <time.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <cstdio>
#include <deque>
#include <functional>
#include <iostream>
#include <string>

#include "model/delta_rule.hpp"
#include "model/functions.hpp"

namespace {

using namespace zea;
using at::Tensor;

constexpr int64_t kHidden = 1024, kRow = 2048;
constexpr DeltaRuleSpec kRule{.key_heads = 16, .value_heads = 16, .key_dim = 128, .value_dim = 128};
constexpr int64_t kQueries = 8, kKeys = 2, kHeadDim = 256;

double seconds_of(const std::function<void()>& call) {
  const auto now = [] {
    timespec time{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
  };
  const double start = now();
  call();
  return now() - start;
}

class Mixer {
 public:
  virtual ~Mixer() = default;
  virtual Tensor output(const Tensor& x) = 0;

  void run(int64_t tokens) {
    Tensor x = at::full({tokens, kHidden}, 0.5F);
    x.add_(at::sin(at::arange(x.numel(), at::kFloat)).view_as(x));
    x.set_requires_grad(true);
    const Tensor y = output(x);
    torch::autograd::backward({y}, {at::ones_like(y)});
  }

 protected:
  Parameter& parameter(const std::vector<int64_t>& shape) {
    Parameter& made = parameters_.emplace_back("p", shape, true, at::kCPU);
    made.set_value(at::randn(shape) * 0.02);
    made.set_gradient(at::zeros(shape));
    return made;
  }

 private:
  std::deque<Parameter> parameters_;
};

class DeltaMixer : public Mixer {
 public:
  explicit DeltaMixer(const std::vector<Segment>& samples) : scan_(samples) {}

  Tensor output(const Tensor& x) override {
    return linear(delta_rule(linear(x, in_, nullptr), scan_, {conv_, decay_, step_, norm_}, kRule),
                  out_, nullptr);
  }
  /// Without the linears: x (tokens, columns).
  Tensor rule_alone(const Tensor& x) {
    return delta_rule(x, scan_, {conv_, decay_, step_, norm_}, kRule);
  }

 private:
  TokenScan scan_;
  Parameter& in_ = parameter({kRule.columns(), kHidden});
  Parameter& conv_ = parameter({kRule.channels(), 1, kRule.taps});
  Parameter& decay_ = parameter({kRule.value_heads});
  Parameter& step_ = parameter({kRule.value_heads});
  Parameter& norm_ = parameter({kRule.value_dim});
  Parameter& out_ = parameter({kHidden, kRule.values()});
};

/// Attention whose outputs are gated, with rotary positions of a quarter of each head.
class AttentionMixer : public Mixer {
 public:
  explicit AttentionMixer(const std::vector<Segment>& samples) : mask_(samples, true) {
    const int64_t tokens = samples.back().start + samples.back().length;
    cosines_ = at::ones({tokens, kHeadDim / 8});
    sines_ = at::zeros({tokens, kHeadDim / 8});
  }

  Tensor output(const Tensor& x) override {
    const Tensor qkv = linear(x, in_, nullptr);
    const Tensor turned = rotary(qkv, cosines_, sines_, kQueries + kKeys, kHeadDim);
    const Tensor y =
        attention(turned.view({x.size(0), kQueries + 2 * kKeys, kHeadDim}), mask_, kQueries, kKeys);
    return linear(y * linear(x, gate_, nullptr).sigmoid(), out_, nullptr);
  }

 private:
  AttentionMask mask_;
  Tensor cosines_, sines_;
  Parameter& in_ = parameter({(kQueries + 2 * kKeys) * kHeadDim, kHidden});
  Parameter& gate_ = parameter({kQueries * kHeadDim, kHidden});
  Parameter& out_ = parameter({kHidden, kQueries* kHeadDim});
};

double run_rule(DeltaMixer& mixer, int64_t tokens) {
  Tensor x = at::sin(at::arange(tokens * kRule.columns(), at::kFloat)).view({tokens, -1});
  x.set_requires_grad(true);
  return seconds_of([&] {
    const Tensor y = mixer.rule_alone(x);
    torch::autograd::backward({y}, {at::ones_like(y)});
  });
}

/// Answers in turn with another program.
void take_turns() {
  DeltaMixer mixer({{0, kRow}});
  for (std::string line; std::getline(std::cin, line);) {
    std::printf("{\"seconds\": %.9f}\n", seconds_of([&] { mixer.run(kRow); }));
    std::fflush(stdout);
  }
}

void compare(int rounds) {
  DeltaMixer delta({{0, kRow}});
  AttentionMixer attending({{0, kRow}});
  double of_delta = 1e30, of_attention = 1e30;
  for (int round = 0; round < rounds; ++round) {
    of_delta = std::min(of_delta, seconds_of([&] { delta.run(kRow); }));
    of_attention = std::min(of_attention, seconds_of([&] { attending.run(kRow); }));
  }
  std::printf("mixer, %ld tokens: %.1f us a token; over attention's: %.2f\n",
              static_cast<long>(kRow), 1e6 * of_delta / kRow, of_delta / of_attention);
  double first = 0;
  for (const int64_t tokens : {int64_t{2048}, int64_t{4096}, int64_t{16384}, int64_t{65536}}) {
    DeltaMixer mixer({{0, tokens}});
    double best = 1e30;
    for (int round = 0; round < std::max(1, rounds / 2); ++round)
      best = std::min(best, run_rule(mixer, tokens));
    const double each = best / static_cast<double>(tokens);
    if (tokens == 4096) first = each;
    std::printf("rule alone, %ld tokens: %.2f us a token%s\n", static_cast<long>(tokens),
                1e6 * each,
                first > 0 ? (", over 4096: " + std::to_string(each / first)).c_str() : "");
  }
}

}  // namespace

int main(int argc, char** argv) {
  at::set_num_threads(1);
  at::manual_seed(1);
  if (argc > 1 && std::string(argv[1]) == "turns") {
    take_turns();
    return 0;
  }
  compare(argc > 1 ? std::stoi(argv[1]) : 5);
}
