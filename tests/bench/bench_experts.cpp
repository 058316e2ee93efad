// SPDX-License-Identifier: Apache-2.0
// Times the grouped GEMMs of a mixture of experts, as model/experts.cpp calls them, against dense
// GEMMs of as many FLOPs: [experts * tokens, H] x [H, I] with one weight, which stays in a cache,
// and [tokens, H] x [H, experts * I], which reads as many bytes of weights. Prints the rate of the
// grouped GEMMs and its median ratios to both, and to the memory bound: the time to read all
// weights once, or to read and write all weight gradients.
//   bench_experts [rounds [hidden inner experts]]
#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "core/error.hpp"
#include "kernels/flat_kernels.hpp"
#include "model/parameter_function.hpp"

namespace zea {
namespace {

using at::Tensor;
using Call = std::function<void()>;

struct Sizes {
  int64_t hidden, inner, experts;
};

double seconds(const Call& call) {
  const auto start = std::chrono::steady_clock::now();
  call();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

Tensor random(std::vector<int64_t> shape, at::ScalarType type) {
  return at::randn(shape).mul_(0.1).to(type);
}

/// One GEMM in three forms, and the memory that bounds it.
struct Compared {
  std::string name;
  Call grouped, one_weight, all_weights, memory;
};

/// The linear of `sizes` with `tokens` rows for each expert, its gradients, and their counterparts.
class Experts {
 public:
  Experts(const Sizes& sizes, int64_t tokens, at::ScalarType type)
      : sizes_(sizes),
        weight_("experts", {sizes.experts, sizes.inner, sizes.hidden}, true, at::kCPU),
        x_(random({sizes.experts * tokens, sizes.hidden}, type)),
        dy_(random({sizes.experts * tokens, sizes.inner}, type)),
        wide_dy_(random({tokens, sizes.experts * sizes.inner}, type)),
        ends_((at::arange(sizes.experts) + 1) * tokens) {
    weight_.set_value(random(weight_.shape(), type));
    weight_.set_gradient(at::zeros(weight_.shape()));
  }

  /// Throws unless the rows of the last expert are multiplied by its own weight.
  void check() const {
    const Tensor y = detail::expert_products(x_, weight_.value().transpose(1, 2), ends_);
    const auto last = [&](const Tensor& rows) {
      return rows.narrow(0, rows.size(0) - tokens(), tokens()).to(at::kDouble);
    };
    const Tensor expected = last(x_).mm(weight_.value()[sizes_.experts - 1].to(at::kDouble).t());
    if ((last(y) - expected).abs().max().item<double>() > expected.abs().max().item<double>() / 64)
      throw InternalError("bench_experts: a grouped GEMM is wrong");
  }

  std::vector<Compared> all() {
    const Tensor matrices = weight_.value(), one = matrices[0], some = x_.narrow(0, 0, tokens());
    const Tensor flat = matrices.flatten(0, 1), gradient = weight_.gradient();
    const auto read = [=] { matrices.view(at::kFloat).sum(); };  // any bytes
    return {{"forward", [=, this] { detail::expert_products(x_, matrices.transpose(1, 2), ends_); },
             [=, this] { product(x_, one.t()); }, [=] { product(some, flat.t()); }, read},
            {"input gradient", [=, this] { detail::expert_products(dy_, matrices, ends_); },
             [=, this] { product(dy_, one); }, [=, this] { product(wide_dy_, flat); }, read},
            {"weight gradient",
             [=, this] {
               detail::add_expert_gradients_now(weight_, WeightOrder::OutIn, x_, dy_, ends_);
             },
             [=, this] { add_product(gradient[0], dy_.t(), x_); },
             [=, this] { add_product(gradient.flatten(0, 1), wide_dy_.t(), some); },
             [=] { at::Tensor(gradient).mul_(0.5); }}};
  }

 private:
  int64_t tokens() const { return x_.size(0) / sizes_.experts; }

  Sizes sizes_;
  Parameter weight_;
  Tensor x_, dy_, wide_dy_, ends_;
};

void measure(const Sizes& sizes, at::ScalarType type, int threads, int rounds) {
  at::set_num_threads(threads);
  for (const int64_t tokens : {8, 32, 128, 512}) {
    Experts experts(sizes, tokens, type);
    experts.check();
    for (const Compared& one : experts.all()) {
      const std::vector<Call> calls{one.grouped, one.one_weight, one.all_weights, one.memory};
      std::vector<std::vector<double>> ratios(calls.size());
      std::vector<double> grouped;
      for (int round = 0; round <= rounds; ++round) {  // the first one warms up
        const double own = seconds(calls[0]);
        for (size_t i = 1; i < calls.size(); ++i) {
          const double other = seconds(calls[i]);
          if (round > 0) ratios[i].push_back(other / own);
        }
        if (round > 0) grouped.push_back(own);
      }
      const double flops = 2e-9 * static_cast<double>(sizes.experts * tokens) *
                           static_cast<double>(sizes.hidden * sizes.inner);
      std::printf("| %ld x %ld x %ld | %s, %d | %s | %ld | %.0f | %.2f | %.2f | %.2f |\n",
                  sizes.experts, sizes.hidden, sizes.inner, type == at::kFloat ? "fp32" : "bf16",
                  threads, one.name.c_str(), tokens, flops / median(grouped), median(ratios[1]),
                  median(ratios[2]), median(ratios[3]));
      std::fflush(stdout);
    }
  }
}

}  // namespace
}  // namespace zea

int main(int argc, char** argv) {
  const zea::KernelRuntime runtime;
  const int rounds = argc > 1 ? std::atoi(argv[1]) : 7;
  std::vector<zea::Sizes> sizes{{2048, 768, 16}, {512, 256, 64}};
  if (argc == 5) sizes = {{std::atoll(argv[2]), std::atoll(argv[3]), std::atoll(argv[4])}};
  std::printf(
      "| experts x H x I | type, threads | GEMM | tokens per expert | GFLOP/s | rate over one "
      "weight | over all weights | over memory bound |\n|---|---|---|---|---|---|---|---|\n");
  for (const zea::Sizes& each : sizes)
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16})
      for (const int threads : {1, 2}) zea::measure(each, type, threads, rounds);
}
