// SPDX-License-Identifier: Apache-2.0
// The loss head alone: seconds of its forward and backward, and how much memory it takes beyond its
// inputs and gradients, by the peak of the process. The counterpart of peer_head.py, which draws
// the same numbers.
//   bench_head ROWS HIDDEN VOCABULARY fp32|bf16 THREADS REPEATS
// Prints one line of JSON: seconds of each repeat, extra_bytes of the first one, loss.
#include <ATen/Parallel.h>

#include <chrono>
#include <cstdio>
#include <exception>
#include <fstream>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "kernels/flat_kernels.hpp"
#include "model/functions.hpp"

namespace {

using namespace zea;
using Clock = std::chrono::steady_clock;

/// A line of /proc/self/status, in bytes.
int64_t bytes_of(const std::string& key) {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;)
    if (int64_t kib = 0; word == key + ":" && status >> kib) return kib << 10;
  throw std::runtime_error("/proc/self/status has no " + key);
}

void forget_peak() {
  std::ofstream("/proc/self/clear_refs") << "5";
}

/// The head's weight as a training run holds it: fp32, and gathered in the type of computation.
struct Head {
  Head(int64_t vocabulary, int64_t hidden, at::ScalarType type)
      : master(at::randn({vocabulary, hidden}).mul_(0.02)),
        gradient(at::zeros({vocabulary, hidden})),
        type(type),
        weight("head", {vocabulary, hidden}, true, at::kCPU) {
    gradient.fill_(1);  // memory that is really there
    weight.set_gradient(gradient);
  }

  double run(const at::Tensor& states, const at::Tensor& targets) {
    gradient.zero_();
    weight.set_value(master.to(type));
    const at::Tensor x = states.to(type).detach().requires_grad_();
    const at::Tensor loss = linear_cross_entropy(x, weight, targets);
    loss.backward();
    return loss.item<double>();
  }

  at::Tensor master, gradient;
  at::ScalarType type;
  Parameter weight;
};

nlohmann::json measure(int64_t rows, int64_t hidden, int64_t vocabulary, at::ScalarType type,
                       int repeats) {
  Head(256, hidden, type).run(at::randn({64, hidden}), at::zeros({64}, at::kLong));  // libraries
  at::manual_seed(1);
  const at::Tensor states = at::randn({rows, hidden});
  Head head(vocabulary, hidden, type);
  const at::Tensor targets = at::randint(vocabulary, {rows}, at::kLong);
  forget_peak();
  const int64_t before = bytes_of("VmRSS");
  const double loss = head.run(states, targets) / static_cast<double>(rows);
  const int64_t extra = bytes_of("VmHWM") - before;
  std::vector<double> seconds;
  for (int i = 0; i < repeats; ++i) {
    const Clock::time_point start = Clock::now();
    head.run(states, targets);
    seconds.push_back(std::chrono::duration<double>(Clock::now() - start).count());
  }
  return {{"seconds", seconds}, {"extra_bytes", extra}, {"losses", {loss}}};
}

}  // namespace

int main(int argc, char** argv) {
  try {
    if (argc != 7)
      throw std::runtime_error(
          "usage: bench_head ROWS HIDDEN VOCABULARY fp32|bf16 THREADS REPEATS");
    at::set_num_threads(std::stoi(argv[5]));
    const KernelRuntime kernels;
    const at::ScalarType type = std::string(argv[4]) == "bf16" ? at::kBFloat16 : at::kFloat;
    const auto answer = measure(std::stoll(argv[1]), std::stoll(argv[2]), std::stoll(argv[3]), type,
                                std::stoi(argv[6]));
    std::printf("%s\n", answer.dump().c_str());
  } catch (const std::exception& error) {
    std::fprintf(stderr, "bench_head: %s\n", error.what());
    return 1;
  }
}
