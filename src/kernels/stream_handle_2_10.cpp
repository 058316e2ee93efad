// SPDX-License-Identifier: Apache-2.0
// libtorch 2.10 tells a stream's handle in its CUDA library alone, which is loaded where it is
// needed: of the stream that is current, by a function of its stable interface for C.
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <dlfcn.h>

#include "core/error.hpp"
#include "kernels/launch.hpp"

namespace zea {

void* stream_handle(const c10::Stream& stream) {
  constexpr const char* kName = "aoti_torch_get_current_cuda_stream";
  using Current = int32_t (*)(int32_t device, void** handle);
  static const auto current = reinterpret_cast<Current>(dlsym(RTLD_DEFAULT, kName));
  if (current == nullptr) throw InternalError(std::string("libtorch_cuda.so has no ") + kName);
  const auto& guard = *c10::impl::getDeviceGuardImpl(stream.device_type());
  const c10::Stream before = guard.exchangeStream(stream);
  void* handle = nullptr;
  const int32_t fault = current(stream.device_index(), &handle);
  guard.exchangeStream(before);
  if (fault != 0) throw InternalError(std::string(kName) + " returned " + std::to_string(fault));
  return handle;
}

}  // namespace zea
