// SPDX-License-Identifier: Apache-2.0
/// A stream of libtorch's as CUDA knows it (cudaStream_t), for what is launched beside libtorch.
#pragma once

#include <c10/core/Stream.h>

namespace zea {

void* stream_handle(const c10::Stream& stream);

}  // namespace zea
