// SPDX-License-Identifier: Apache-2.0
// Small pieces of work side by side on libtorch's threads: to wake them for parts of each piece
// would take longer than the piece.
#pragma once

#include <c10/util/FunctionRef.h>

#include <cstdint>

namespace zea {

/// Calls visit(item) once for each in [0, items); a thread that is free takes the next one, and
/// what it calls runs on it alone.
void side_by_side(int64_t items, c10::function_ref<void(int64_t)> visit);

}  // namespace zea
