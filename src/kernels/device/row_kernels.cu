// SPDX-License-Identifier: Apache-2.0
// The row functors, compiled for devices.
#include "device_launcher.cuh"

namespace zea::detail {

ZEA_FOR_ROW_FUNCTORS(ZEA_INSTANTIATE_LAUNCH)

}  // namespace zea::detail
