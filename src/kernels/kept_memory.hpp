// SPDX-License-Identifier: Apache-2.0
// An allocator of host tensors that keeps some of what is freed. A step takes and frees the same
// tensors as the one before, of up to some MiB: from glibc each costs a search, and often memory
// that is no longer in a cache. Sizes are rounded up by at most an eighth, so that tensors of
// steps with other numbers of tokens fit; what lies idle is bounded, and sizes that nobody asks
// for any more make room.
#pragma once

#include <c10/core/Allocator.h>

#include <memory>

namespace zea::detail {

class KeptMemory : public c10::Allocator {
 public:
  static constexpr size_t kMostIdle = size_t{64} << 20;  ///< bytes that lie idle at most

  KeptMemory();

  /// Where memory is at its end gives up what lies idle; else throws an Error with the bytes.
  c10::DataPtr allocate(size_t bytes) override;
  c10::DeleterFnPtr raw_deleter() const override;
  void copy_data(void* target, const void* source, size_t bytes) const override;

  size_t idle_bytes() const;

 private:
  class Idle;

  void* new_or_throw(size_t block_bytes, size_t asked_bytes);

  std::shared_ptr<Idle> idle_;  ///< shared with every tensor, since one may outlive the allocator
};

}  // namespace zea::detail
