// SPDX-License-Identifier: Apache-2.0
// How a functor over chunks of a flat buffer runs on the host: on libtorch's threads.
#pragma once

#include <c10/util/FunctionRef.h>

#include <cstdint>

#include "core/kernel_sizes.hpp"

namespace zea::detail {

inline int64_t num_chunks(int64_t elements, int64_t step = kChunkElements) {
  return (elements + step - 1) / step;
}

/// Calls `functor(chunk, begin, end)` for each chunk of [0, elements), at most `step` long, in any
/// order and on any thread.
void for_each_chunk(int64_t elements, c10::function_ref<void(int64_t, int64_t, int64_t)> functor,
                    int64_t step = kChunkElements);

}  // namespace zea::detail
