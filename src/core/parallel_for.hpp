// SPDX-License-Identifier: Apache-2.0
// Work that waits for disks, shared by a few threads that live as long as it lasts.
#pragma once

#include <cstddef>
#include <functional>

namespace zea {

/// Calls work(thread, item) once for each item in [0, items), items in order, by up to `threads`
/// threads, of which the caller is one. After an exception no further item is begun; what the
/// lowest of the items threw is thrown on.
void parallel_for(int threads, size_t items,
                  const std::function<void(int thread, size_t item)>& work);

}  // namespace zea
