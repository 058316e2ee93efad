// SPDX-License-Identifier: Apache-2.0
// zea's row functors on the stand-in device, each a launch: by default libtorch's operations stand
// for them there, since what these read and write is known.
#pragma once

namespace zea::testing {

/// Whether the device has kernels of zea's from now on.
void have_kernels(bool do_so);

}  // namespace zea::testing
