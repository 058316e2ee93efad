// SPDX-License-Identifier: Apache-2.0
// Copying what is not read again soon: where the processor can, past its caches, so that memory is
// not read before it is overwritten and training's values stay cached. One file per kind of
// processor; CMake chooses.
#pragma once

#include <cstdint>

namespace zea::detail {

/// Any addresses, not overlapping. Other threads that synchronise with the caller see the copy.
void copy_streamed(char* target, const char* source, int64_t bytes);

}  // namespace zea::detail
