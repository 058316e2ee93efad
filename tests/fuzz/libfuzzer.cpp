// SPDX-License-Identifier: Apache-2.0
// libFuzzer's side of the target ZEA_FUZZ_TARGET.
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "target.hpp"

namespace {

const zea::fuzz::Target& target() {
  static const zea::fuzz::Target& found = zea::fuzz::target_of(ZEA_FUZZ_TARGET);
  return found;
}

}  // namespace

extern "C" {

const char* __ubsan_default_options() {
  return "halt_on_error=1:print_stacktrace=1";
}

size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t max_size);

size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size, unsigned) {
  size = LLVMFuzzerMutate(data, size, max_size);
  if (target().mend == nullptr) return size;
  zea::fuzz::Bytes bytes(data, data + size);
  target().mend(bytes);
  if (!bytes.empty()) std::memcpy(data, bytes.data(), size);
  return size;
}

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string fault = zea::fuzz::feed(target(), {data, data + size});
  if (fault.empty()) return 0;
  std::fprintf(stderr, "%s: %s\n", ZEA_FUZZ_TARGET, fault.c_str());
  std::abort();
}
}
