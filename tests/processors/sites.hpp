// SPDX-License-Identifier: Apache-2.0
// Instructions on tiles that are met again need no signal, which costs more than a hundred of them.
#pragma once

#include <cstdint>

namespace zea::testing {

/// Replaces instructions on tiles, which [begin, end) are, by a jump to where they are carried
/// out. Leaves them where a jump does not reach, or cannot be written at once.
void leave_detour(uint8_t* begin, const uint8_t* end);

/// Whether another thread has just done that.
bool is_detour(const uint8_t* code);

}  // namespace zea::testing
