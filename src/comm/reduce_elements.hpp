// SPDX-License-Identifier: Apache-2.0
// Reductions on host memory in the given order: the same bits on every rank and in every run.
#pragma once

#include <cstdint>
#include <vector>

#include "comm/collectives.hpp"

namespace zea {

/// result[i] = parts[0][i] op parts[1][i] op ..., with bf16 and fp16 widened to fp32 and rounded
/// once at the end. `result` may be one of the parts.
void reduce_elements(const std::vector<const void*>& parts, void* result, int64_t count,
                     DType dtype, ReduceOp op);

/// The sum of bf16 or fp16 elements, left in fp32; `result` is none of the parts.
void sum_elements_wide(const std::vector<const void*>& parts, float* result, int64_t count,
                       DType dtype);

}  // namespace zea
