// SPDX-License-Identifier: Apache-2.0
// Times each of zea's kernels against libtorch's operations for the same, on one thread, at sizes
// of a small run: microseconds of both and how many times faster ours is, minima of rounds in turn.
//   bench_kernels [rounds]
#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>

#include "kernels/flat_kernels.hpp"
#include "kernels/matmul.hpp"
#include "kernels/row_kernels.hpp"
#include "kernels/tiled_attention.hpp"

namespace {

using namespace zea;
using Call = std::function<void()>;

double microseconds(const Call& call) {
  const auto start = std::chrono::steady_clock::now();
  call();
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start)
      .count();
}

class Table {
 public:
  explicit Table(int rounds) : rounds_(rounds) {
    std::printf("| kernel | ours us | libtorch us | times faster |\n|---|---|---|---|\n");
  }

  void compare(const std::string& name, const Call& ours, const Call& theirs) const {
    ours();
    theirs();
    double best = 1e30, other = 1e30;
    for (int round = 0; round < rounds_; ++round) {
      best = std::min(best, microseconds(ours));
      other = std::min(other, microseconds(theirs));
    }
    std::printf("| %s | %.0f | %.0f | %.2f |\n", name.c_str(), best, other, other / best);
  }

 private:
  int rounds_;
};

void compare_rows(const Table& table, at::ScalarType type, const std::string& name) {
  const at::Tensor x = at::randn({928, 192}).to(type), weight = at::randn({192}).to(type);
  const at::Tensor wide = at::randn({928, 1024}).to(type), dy = at::randn({928, 512}).to(type);
  const at::Tensor heads = at::randn({928, 10, 32}).to(type);
  // Cosines and sines of angles, since heads are turned in place again and again: other factors
  // make them tiny.
  const at::Tensor angles = at::randn({928, 16});
  const at::Tensor cosines = angles.cos().to(type), sines = angles.sin().to(type);
  const NormParameters norm{weight, {}, 1e-5};
  const NormGradients gradients{at::zeros({192}), {}};
  const NormRows rows = norm_forward(x, {}, norm);
  table.compare(
      name + " rms_norm", [&] { norm_forward(x, {}, norm); },
      [&] { norm_forward_reference(x, {}, norm); });
  table.compare(
      name + " rms_norm backward", [&] { norm_backward(x, {}, rows, norm, gradients); },
      [&] { norm_backward_reference(x, {}, rows, norm, gradients); });
  table.compare(
      name + " swiglu", [&] { gated_forward(wide, Gating::Silu); },
      [&] { gated_forward_reference(wide, Gating::Silu); });
  table.compare(
      name + " swiglu backward", [&] { gated_backward(dy, wide, Gating::Silu); },
      [&] { gated_backward_reference(dy, wide, Gating::Silu); });
  table.compare(
      name + " quick_gelu", [&] { gelu_forward(wide, {}, Gelu::Quick); },
      [&] { gelu_forward_reference(wide, {}, Gelu::Quick); });
  table.compare(
      name + " quick_gelu backward", [&] { gelu_backward(wide, wide, {}, Gelu::Quick, {}); },
      [&] { gelu_backward_reference(wide, wide, {}, Gelu::Quick, {}); });
  table.compare(
      name + " rotary", [&] { rotate_heads(heads, cosines, sines, 8, false); },
      [&] { rotate_heads_reference(heads, cosines, sines, 8, false); });
}

/// Against the bare flash kernel on tensors that are gathered, padded and widened already.
void compare_attention(const Table& table, at::ScalarType type, const std::string& name,
                       int64_t length, bool causal) {
  const int64_t count = 928 / length, tokens = count * length;
  const at::Tensor qkv = at::randn({tokens, 18, 32}).to(type),
                   dy = at::randn({tokens, 6, 32}).to(type);
  const at::Tensor dqkv = at::empty_like(qkv);
  const auto third = [](const at::Tensor& x, int64_t i) { return x.narrow(1, 6 * i, 6); };
  const AttentionInputs in{third(qkv, 0), third(qkv, 1), third(qkv, 2)};
  const AttentionSums own{at::empty_like(dy), at::empty({tokens, 6})};
  std::vector<AttentionSlice> slices;
  for (int64_t token = 0; token < tokens; token += length)
    slices.push_back({token, length, token, length, causal ? SliceMask::Causal : SliceMask::None});
  const at::Tensor q = at::randn({count, 6, length, 32});
  const auto [out, lse] = at::_scaled_dot_product_flash_attention_for_cpu(q, q, q, 0.0, causal);
  const at::Tensor saved = out, sums = lse;
  table.compare(
      name, [&] { tiled_attention_forward(in, slices, own, AttentionResult::Written); },
      [&] { at::_scaled_dot_product_flash_attention_for_cpu(q, q, q, 0.0, causal); });
  table.compare(
      name + " backward",
      [&] {
        tiled_attention_backward(in, dy, own, slices,
                                 {third(dqkv, 0), third(dqkv, 1), third(dqkv, 2)},
                                 AttentionResult::Written);
      },
      [&] {
        at::_scaled_dot_product_flash_attention_for_cpu_backward(q, q, q, q, saved, sums, 0.0,
                                                                 causal);
      });
}

void compare_products(const Table& table) {
  const at::Tensor x = at::randn({928, 192}), weight = at::randn({1024, 192});
  const at::Tensor dy = at::randn({928, 1024}), bias = at::randn({1024});
  const at::Tensor sum = at::zeros({1024, 192});
  at::Tensor other = sum;
  table.compare(
      "fp32 product", [&] { product(x, weight.t()); }, [&] { at::mm(x, weight.t()); });
  table.compare(
      "fp32 biased_product", [&] { biased_product(bias, x, weight.t()); },
      [&] { at::addmm(bias, x, weight.t()); });
  table.compare(
      "fp32 product with a weight", [&] { product(dy, weight); }, [&] { at::mm(dy, weight); });
  table.compare(
      "fp32 add_product", [&] { add_product(sum, dy.t(), x); }, [&] { other.addmm_(dy.t(), x); });
}

/// Fused kernels, against libtorch's operations one after the other.
void compare_fused(const Table& table, at::ScalarType type, const std::string& name) {
  const at::Tensor x = at::randn({928, 192}).to(type), added = at::randn({928, 192}).to(type);
  const at::Tensor weight = at::randn({192}).to(type), bias = at::randn({192}).to(type);
  const at::Tensor dweight = at::zeros({192}), dbias = at::zeros({192});
  for (bool is_layer_norm : {false, true}) {
    const NormParameters norm{weight, is_layer_norm ? bias : at::Tensor(), 1e-5};
    const NormGradients gradients{dweight, is_layer_norm ? dbias : at::Tensor()};
    const NormRows rows = norm_forward(x, added, norm),
                   theirs = norm_forward_reference(x, added, norm);
    const std::string kind = name + (is_layer_norm ? " layer norm" : " rms_norm");
    table.compare(
        kind + " of a sum", [&] { norm_forward(x, added, norm); },
        [&] { norm_forward_reference(x, added, norm); });
    table.compare(
        kind + " of a sum, backward", [&] { norm_backward(x, added, rows, norm, gradients); },
        [&] { norm_backward_reference(x, added, theirs, norm, gradients); });
  }
  const at::Tensor wide = at::randn({928, 1024}).to(type), wide_bias = at::randn({1024}).to(type);
  const at::Tensor sum = at::zeros({1024});
  for (const auto& [gelu, kind] :
       {std::pair{Gelu::Erf, " gelu"}, {Gelu::Tanh, " gelu tanh"}, {Gelu::Quick, " quick_gelu"}}) {
    const Gelu which = gelu;
    table.compare(
        name + kind + " with bias", [&] { gelu_forward(wide, wide_bias, which); },
        [&] { gelu_forward_reference(wide, wide_bias, which); });
    table.compare(
        name + kind + " with bias, backward",
        [&] { gelu_backward(wide, wide, wide_bias, which, sum); },
        [&] { gelu_backward_reference(wide, wide, wide_bias, which, sum); });
  }
  const at::Tensor target = at::zeros({928, 1024});
  if (type != at::kFloat)
    table.compare(
        name + " added to fp32", [&] { add_converted(target, wide); },
        [&] { add_converted_reference(target, wide); });
  table.compare(
      name + " sums of columns", [&] { add_column_sums(sum, wide); },
      [&] { add_column_sums_reference(sum, wide); });
}

void compare_adamw(const Table& table) {
  std::vector<at::Tensor> t;
  for (int i = 0; i < 4; ++i) t.push_back(at::rand({1 << 20}));
  const AdamwUpdate update{.lr = 1e-4};
  table.compare(
      "fp32 adamw, 1M parameters", [&] { adamw(t[0], t[1], t[2], t[3], update); },
      [&] {
        at::_fused_adamw_({t[0]}, {t[1]}, {t[2]}, {t[3]}, {}, {at::ones({})}, 1e-4, 0.9, 0.95, 0.0,
                          1e-8, false, false);
      });
}

}  // namespace

int main(int argc, char** argv) {
  at::set_num_threads(1);
  const KernelRuntime runtime;
  const Table table(argc > 1 ? std::atoi(argv[1]) : 50);
  for (const auto& [type, name] : {std::pair{at::kFloat, "fp32"}, {at::kBFloat16, "bf16"}}) {
    compare_rows(table, type, name);
    compare_fused(table, type, name);
  }
  compare_products(table);
  for (const auto& [type, name] : {std::pair{at::kFloat, "fp32"}, {at::kBFloat16, "bf16"}})
    for (int64_t length : {17, 29, 64, 128, 192})
      compare_attention(table, type, name + std::string(" attention of ") + std::to_string(length),
                        length, length != 17);
  compare_adamw(table);
}
