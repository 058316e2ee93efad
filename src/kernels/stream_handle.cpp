// SPDX-License-Identifier: Apache-2.0
#include "kernels/stream_handle.hpp"

namespace zea {

void* stream_handle(const c10::Stream& stream) {
  return stream.native_handle();
}

}  // namespace zea
