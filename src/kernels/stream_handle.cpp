// SPDX-License-Identifier: Apache-2.0
#include "kernels/launch.hpp"

namespace zea {

void* stream_handle(const c10::Stream& stream) {
  return stream.native_handle();
}

}  // namespace zea
