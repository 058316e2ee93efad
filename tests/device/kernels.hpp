// SPDX-License-Identifier: Apache-2.0
// zea's row functors on the stand-in device, each a launch whose reads and writes the finders know
// (watched_accesses.hpp). By default libtorch's operations replace them, as in a build without a
// CUDA compiler.
#pragma once

namespace zea::testing {

/// Whether the device has kernels of zea's from now on.
void have_kernels(bool do_so);

}  // namespace zea::testing
