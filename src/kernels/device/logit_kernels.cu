// SPDX-License-Identifier: Apache-2.0
// The logit functors, compiled for devices.
#include "device_launcher.cuh"

namespace zea::detail {

ZEA_FOR_LOGIT_FUNCTORS(ZEA_INSTANTIATE_LAUNCH)

}  // namespace zea::detail
