// SPDX-License-Identifier: Apache-2.0
// The link of a GPU to its host while it is used: at rest GPUs lower its speed.
#pragma once

#include <ATen/core/Tensor.h>

#include "comm/visible_gpus.hpp"

namespace zea {

/// The best that is seen while memory is copied to `device`, which is the one of that address.
PciLink link_in_use(const std::string& address, at::Device device,
                    const std::string& devices = kPciDevices);

}  // namespace zea
