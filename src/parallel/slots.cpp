// SPDX-License-Identifier: Apache-2.0
#include "zea/parallel/slots.hpp"

#include "zea/core/error.hpp"

namespace zea {

Slots::Slots(const SlotPlan& plan, Ledger& ledger, Collectives* reach, at::Device device)
    : plan_(plan), holders_(plan.bytes.size(), -1) {
  for (int64_t bytes : plan.bytes)
    memory_.push_back(allocate_buffer(ledger, reach, bytes, at::kByte, device));
}

at::Tensor Slots::take(int buffer, int64_t elements, at::ScalarType dtype) {
  const int slot = plan_.slot_of_buffer[buffer];
  ZEA_ASSERT(slot >= 0 && holders_[slot] == -1);
  holders_[slot] = buffer;
  const auto bytes = elements * static_cast<int64_t>(c10::elementSize(dtype));
  return memory_[slot].tensor().narrow(0, 0, bytes).view(dtype);
}

void Slots::give_back(int buffer) {
  const int slot = plan_.slot_of_buffer[buffer];
  ZEA_ASSERT(holders_[slot] == buffer);
  holders_[slot] = -1;
#ifndef NDEBUG
  memory_[slot].tensor().fill_(0xff);  // NaN in every type: a read after this is a bug that shows
#endif
}

}  // namespace zea
