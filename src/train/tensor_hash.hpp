// SPDX-License-Identifier: Apache-2.0
// Hashes of the bits of tensors, to compare values of ranks bit for bit.
#pragma once

#include <ATen/ATen.h>

namespace zea {

/// Returns a hash of the bits of a tensor, an int64 scalar on its device: the sum of its words of
/// at most 32 bits, each times an odd factor, modulo 2^64. The order of the sum does not matter, so
/// hosts and devices agree, and a change of one word always changes the hash.
at::Tensor hash_of(const at::Tensor& values);

}  // namespace zea
