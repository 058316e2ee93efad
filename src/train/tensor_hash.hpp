// SPDX-License-Identifier: Apache-2.0
// Hashes of the bits of tensors, to compare values of ranks bit for bit.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>

namespace zea {

/// Adds the bits of a tensor to a hash. A contiguous tensor of a device comes over in chunks.
void add_to_hash(int64_t& hash, const at::Tensor& values);

}  // namespace zea
