// SPDX-License-Identifier: Apache-2.0
// A build without a CUDA compiler: tensors on devices take libtorch's operations.
#include "core/error.hpp"
#include "kernels/device/functor_lists.hpp"
#include "kernels/device/launch_items.hpp"

namespace zea::detail {

bool has_device_kernels() {
  return false;
}

template <class Functor>
void launch_items(const Functor&, int64_t, int64_t, void*) {
  throw InternalError("this build has no kernels for devices");
}

ZEA_FOR_ROW_FUNCTORS(ZEA_INSTANTIATE_LAUNCH)
ZEA_FOR_LOGIT_FUNCTORS(ZEA_INSTANTIATE_LAUNCH)
ZEA_FOR_FLAT_FUNCTORS(ZEA_INSTANTIATE_LAUNCH)

}  // namespace zea::detail
