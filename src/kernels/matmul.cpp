// SPDX-License-Identifier: Apache-2.0
#include "kernels/matmul.hpp"

#include <ATen/Context.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>

#include <cstdlib>
#include <string_view>

#include "core/error.hpp"
#include "kernels/pair_matmul.hpp"
#include "kernels/row_kernels.hpp"

// oneDNN's GEMM of dense matrices, result = beta result + alpha a b. The library exports it without
// a header; if it is absent, at::mm takes everything.
namespace at::native {
__attribute__((weak)) void mkldnn_matmul(const Tensor& a, const Tensor& b, const Tensor& result,
                                         float beta, float alpha);
}

namespace zea {
namespace {

using detail::add_converted_product;
using detail::add_pair_product;
using detail::converted_product;
using detail::library_has_vectors;
using detail::pair_product;
using detail::skinny_gemm;
using detail::takes_converted_product;
using detail::takes_pair_product;
using detail::takes_skinny_gemm;
using detail::takes_tile_gemm;
using detail::tile_gemm;

// Below this, calling oneDNN costs more than it saves.
constexpr int64_t kLeastProducts = int64_t{1} << 20;
// oneDNN compiles a kernel for every new shape, which costs as much as the GEMM itself, and every
// step has another number of tokens. So it gets whole blocks of them, and MKL the rest.
constexpr int64_t kBlock = 64;

bool is_intel() {
#if defined(__x86_64__)
  return __builtin_cpu_is("intel");
#else
  return true;
#endif
}

/// Whether oneDNN multiplies bf16, where it does, by a processor that cannot, or may not.
bool sums_in_fp32() {
#if defined(__x86_64__)
  const char* const most = std::getenv("ONEDNN_MAX_CPU_ISA");
  const std::string_view isa = most == nullptr ? "" : most;
  if (isa == "AVX512_CORE" || isa == "AVX512_CORE_VNNI") return true;
  return !__builtin_cpu_supports("avx512bf16");
#else
  return false;
#endif
}

/// Returns how many of `tokens` oneDNN takes; 0: at::mm takes all.
int64_t onednn_part(const at::Tensor& a, const at::Tensor& b, int64_t tokens) {
  static const bool is_faster =
      at::native::mkldnn_matmul != nullptr && !is_intel() && library_has_vectors();
  if (!is_faster || !a.is_cpu() || a.scalar_type() != at::kFloat) return 0;
  if (!at::globalContext().userEnabledMkldnn()) return 0;
  if (a.size(0) * a.size(1) * b.size(1) < kLeastProducts) return 0;
  return tokens / kBlock * kBlock;
}

/// result = beta result + a b; tokens are the rows of a and the result.
void multiply_rows(const at::Tensor& result, const at::Tensor& a, const at::Tensor& b, double beta,
                   int64_t part) {
  const int64_t rest = a.size(0) - part;
  at::native::mkldnn_matmul(a.narrow(0, 0, part), b, result.narrow(0, 0, part),
                            static_cast<float>(beta), 1);
  if (rest == 0) return;
  at::Tensor tail = result.narrow(0, part, rest);
  at::addmm_out(tail, tail, a.narrow(0, part, rest), b, beta);
}

}  // namespace

at::Tensor product(const at::Tensor& a, const at::Tensor& b) {
  const bool is_narrow = a.scalar_type() == at::kBFloat16;
  if (!is_narrow && !takes_skinny_gemm(a, b) && onednn_part(a, b, a.size(0)) == 0)
    return at::mm(a, b);
  const at::Tensor result = at::empty({a.size(0), b.size(1)}, a.options());
  product_into(result, a, b);
  return result;
}

at::Tensor wide_product(const at::Tensor& a, const at::Tensor& b) {
  if (a.scalar_type() != at::kBFloat16) return product(a, b);
  const at::Tensor result = at::empty({a.size(0), b.size(1)}, a.options().dtype(at::kFloat));
  // On CPUs the library rounds products of bf16 to bf16.
  if (a.is_cpu() && !takes_converted_product(a, b) && !takes_pair_product(result, a, b))
    return product(a.to(at::kFloat), b.to(at::kFloat));
  add_product(result, a, b, 0);
  return result;
}

void product_into(const at::Tensor& result, const at::Tensor& a, const at::Tensor& b) {
  if (result.scalar_type() == a.scalar_type()) {
    if (takes_skinny_gemm(a, b)) return skinny_gemm(result, a, b, {});
    if (takes_pair_product(result, a, b)) return pair_product(result, a, b, {});
    if (takes_converted_product(a, b)) return converted_product(result, a, b, {});
  }
  const int64_t part = onednn_part(a, b, a.size(0));
  at::Tensor target = result;
  if (part == 0)
    at::mm_out(target, a, b);
  else
    multiply_rows(target, a, b, 0, part);
}

void products_into(const at::Tensor& results, const at::Tensor& a, const at::Tensor& b) {
  if (!a.is_cpu() && a.size(0) > 1) {
    at::Tensor target = results;
    at::bmm_out(target, a, b.expand({a.size(0), b.size(0), b.size(1)}));
    return;
  }
  for (int64_t i = 0; i < a.size(0); ++i) product_into(results[i], a[i], b);
}

void product_on_thread(const at::Tensor& result, const at::Tensor& a, const at::Tensor& b) {
  if (takes_tile_gemm(a, b)) return tile_gemm(result, a, b);
  product_into(result, a, b);
}

void add_product(const at::Tensor& sum, const at::Tensor& a, const at::Tensor& b, double beta) {
  // oneDNN has only a loop for sums whose columns lie together.
  if (sum.stride(1) != 1 && sum.stride(0) == 1) return add_product(sum.t(), b.t(), a.t(), beta);
  const bool is_narrow = a.scalar_type() == at::kBFloat16 || a.scalar_type() != sum.scalar_type();
  // Narrow products of hosts always add to sums, and no rows add nothing.
  if (beta == 0 && (a.size(1) == 0 || (a.is_cpu() && is_narrow))) {
    sum.zero_();
    beta = 1;
  }
  if (takes_converted_product(a, b)) return add_converted_product(sum, a, b);
  at::Tensor result = sum;
  if (a.scalar_type() != sum.scalar_type()) {
    if (takes_pair_product(sum, a, b)) return add_pair_product(sum, a, b);
    if (a.is_cpu()) return add_converted(sum, at::mm(a, b));
    at::addmm_out(result, sum, a, b, sum.scalar_type(), beta);
    return;
  }
  ZEA_ASSERT(a.size(1) == b.size(0));  // the parts below would fit all the same
  // Here the sum is over tokens.
  const int64_t part = onednn_part(a, b, a.size(1)), rest = a.size(1) - part;
  if (part > 0) {
    at::native::mkldnn_matmul(a.narrow(1, 0, part), b.narrow(0, 0, part), sum,
                              static_cast<float>(beta), 1);
    beta = 1;
  }
  if (rest > 0) result.addmm_(a.narrow(1, part, rest), b.narrow(0, part, rest), beta);
}

at::Tensor biased_product(const at::Tensor& bias, const at::Tensor& a, const at::Tensor& b) {
  if (takes_skinny_gemm(a, b)) {
    const at::Tensor result = at::empty({a.size(0), b.size(1)}, a.options());
    skinny_gemm(result, a, b, bias);
    return result;
  }
  if (a.scalar_type() == at::kBFloat16) {
    at::Tensor result = at::empty({a.size(0), b.size(1)}, a.options());
    if (takes_converted_product(a, b))
      converted_product(result, a, b, bias);
    else if (takes_pair_product(result, a, b))
      pair_product(result, a, b, bias);
    else
      at::addmm_out(result, bias, a, b);
    return result;
  }
  const int64_t part = onednn_part(a, b, a.size(0));
  if (part == 0) return at::addmm(bias, a, b);
  const at::Tensor result = bias.expand({a.size(0), b.size(1)}).contiguous();
  multiply_rows(result, a, b, 1, part);
  return result;
}

Bf16GemmBackend bf16_gemm_backend() {
  if (detail::converts_products()) return Bf16GemmBackend::Converted;
  if (detail::pair_use() == detail::PairUse::All) return Bf16GemmBackend::Pairs;
  return sums_in_fp32() ? Bf16GemmBackend::LibrarySums : Bf16GemmBackend::Library;
}

}  // namespace zea
