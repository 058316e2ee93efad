// SPDX-License-Identifier: Apache-2.0
// The elements of tensors as kernels see them, and loops over them compiled for several
// instruction sets.
#pragma once

#include <ATen/core/Tensor.h>

#include <cmath>
#include <cstdint>
#include <limits>

#include "core/error.hpp"
#include "kernels/element_math.hpp"

// Compiles a function for processors with AVX-512, too; the loader takes the one that fits. Not
// under sanitizers, which are not yet there when the loader decides.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && \
    !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define ZEA_WIDE_CLONES [[gnu::target_clones("arch=x86-64-v4", "default")]]
#else
#define ZEA_WIDE_CLONES
#endif

namespace zea::detail {

template <class T>
T* elements(const at::Tensor& tensor) {
  return static_cast<T*>(tensor.data_ptr());
}

/// Calls `visit(T{})` with the stored type of a tensor's elements.
template <class Visit>
void with_element_type(const at::Tensor& tensor, Visit visit) {
  switch (tensor.scalar_type()) {
    case at::kDouble:
      return visit(double{});
    case at::kFloat:
      return visit(float{});
    case at::kBFloat16:
      return visit(Bf16{});
    default:
      throw InternalError(std::string("no kernel for elements of type ") +
                          at::toString(tensor.scalar_type()));
  }
}

}  // namespace zea::detail
