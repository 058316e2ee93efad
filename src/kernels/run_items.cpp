// SPDX-License-Identifier: Apache-2.0
#include "kernels/run_items.hpp"

#include <c10/core/impl/DeviceGuardImplInterface.h>

#include "kernels/launch.hpp"

namespace zea::detail {

bool runs_kernels(const at::Tensor& x) {
  const at::ScalarType type = x.scalar_type();
  return (x.is_cpu() || has_device_kernels()) &&
         (type == at::kDouble || type == at::kFloat || type == at::kBFloat16);
}

void* stream_of(const at::Tensor& x) {
  return stream_handle(c10::impl::getDeviceGuardImpl(x.device().type())->getStream(x.device()));
}

}  // namespace zea::detail
