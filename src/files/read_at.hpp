// SPDX-License-Identifier: Apache-2.0
// Reading a part of an open file.
#pragma once

#include <cstdint>

namespace zea {

/// Reads bytes [offset, offset + bytes), in however many parts the kernel gives them. Returns why
/// it could not, `at_end` where the file ends before them; nullptr when all are there.
const char* read_at(int descriptor, int64_t offset, char* target, int64_t bytes,
                    const char* at_end);

}  // namespace zea
