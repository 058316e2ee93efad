// SPDX-License-Identifier: Apache-2.0
// A mixer with the gated delta rule, forward and backward, on one thread in fp32, at the sizes of
// Qwen3.5-0.8B: over its attention layer of the same width, and at several lengths. Times are
// processor times of the thread, so that other load disturbs them little. Time in the operating
// system is printed separately: on a virtual machine it can take longer to provide memory pages
// than to compute in them.
//   bench_delta [ROUNDS]
//   bench_delta turns: answers each line of standard input with the times of one run of the mixer,
//     and of one without its linears
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <sys/resource.h>
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

/// Seconds of this thread.
struct Times {
  double user = 1e30, kernel = 1e30;
};

Times times_so_far() {
  rusage used{};
  getrusage(RUSAGE_THREAD, &used);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
  };
  return {seconds(used.ru_utime), seconds(used.ru_stime)};
}

Times times_of(const std::function<void()>& call) {
  const Times start = times_so_far();
  call();
  const Times end = times_so_far();
  return {end.user - start.user, end.kernel - start.kernel};
}

Times least(const Times& a, const Times& b) {
  return {std::min(a.user, b.user), std::min(a.kernel, b.kernel)};
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

/// The mixer without its linears, on a sample of so many tokens.
class Rule {
 public:
  explicit Rule(int64_t tokens) : mixer_({{0, tokens}}) {
    x_ = at::sin(at::arange(tokens * kRule.columns(), at::kFloat)).view({tokens, -1});
    x_.set_requires_grad(true);
  }
  Times run() {
    x_.mutable_grad().reset();
    return times_of([&] {
      const Tensor y = mixer_.rule_alone(x_);
      torch::autograd::backward({y}, {at::ones_like(y)});
    });
  }

 private:
  DeltaMixer mixer_;
  Tensor x_;
};

std::string json_of(const Times& times) {
  return "{\"user\": " + std::to_string(times.user) +
         ", \"kernel\": " + std::to_string(times.kernel) + "}";
}

/// Answers in turn with another program.
void take_turns() {
  DeltaMixer mixer({{0, kRow}});
  Rule rule(kRow);
  for (std::string line; std::getline(std::cin, line);) {
    const Times with_linears = times_of([&] { mixer.run(kRow); });
    std::printf("[%s, %s]\n", json_of(with_linears).c_str(), json_of(rule.run()).c_str());
    std::fflush(stdout);
  }
}

void compare(int rounds) {
  const auto of_token = [](double seconds, int64_t tokens) {
    return 1e6 * seconds / static_cast<double>(tokens);
  };
  DeltaMixer delta({{0, kRow}});
  AttentionMixer attending({{0, kRow}});
  Times of_delta, of_attention;
  for (int round = 0; round < rounds; ++round) {
    const Times one = times_of([&] { delta.run(kRow); });
    const Times other = times_of([&] { attending.run(kRow); });
    of_delta = least(of_delta, one), of_attention = least(of_attention, other);
  }
  std::printf("mixer, %ld tokens: %.1f us a token; over attention's: %.2f\n",
              static_cast<long>(kRow), of_token(of_delta.user, kRow),
              of_delta.user / of_attention.user);
  double at_4096 = 0;
  for (const int64_t tokens : {int64_t{2048}, int64_t{4096}, int64_t{16384}, int64_t{65536}}) {
    Rule rule(tokens);
    Times times;
    for (int round = 0; round < std::max(2, rounds / 2); ++round) times = least(times, rule.run());
    if (tokens == 4096) at_4096 = of_token(times.user, tokens);
    std::printf("rule alone, %ld tokens: %.2f us a token, and %.2f of the kernel",
                static_cast<long>(tokens), of_token(times.user, tokens),
                of_token(times.kernel, tokens));
    if (at_4096 > 0) std::printf(", over 4096: %.3f", of_token(times.user, tokens) / at_4096);
    std::printf("\n");
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
