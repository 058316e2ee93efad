// SPDX-License-Identifier: Apache-2.0
// How host code of kernels runs: chunks of a flat buffer and small pieces of work on libtorch's
// threads, streams of a device, and the allocator of host tensors.
#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/Stream.h>
#include <c10/util/FunctionRef.h>

#include <cstdint>
#include <memory>

#include "core/kernel_sizes.hpp"

namespace zea::detail {

inline int64_t num_chunks(int64_t elements, int64_t step = kChunkElements) {
  return (elements + step - 1) / step;
}

/// Calls `functor(chunk, begin, end)` for each chunk of [0, elements), at most `step` long, in any
/// order and on any thread.
void for_each_chunk(int64_t elements, c10::function_ref<void(int64_t, int64_t, int64_t)> functor,
                    int64_t step = kChunkElements);

}  // namespace zea::detail

namespace zea {

/// Returns CUDA's handle (cudaStream_t) of a stream of libtorch, for launches beside libtorch.

void* stream_handle(const c10::Stream& stream);

// Small pieces of work side by side on libtorch's threads: to wake them for parts of each piece
// would take longer than the piece.

/// Calls visit(item) once for each in [0, items); a free thread takes the next one, and its work
/// runs on that thread alone.
void side_by_side(int64_t items, c10::function_ref<void(int64_t)> visit);

}  // namespace zea

namespace zea::detail {

// An allocator of host tensors that keeps some freed memory. A step allocates and frees the same
// tensors as the one before, of up to some MiB: from glibc each costs a search, and often memory
// that is no longer in a cache. Sizes are rounded up by at most an eighth, so that tensors of steps
// with other numbers of tokens fit; idle memory is bounded, and sizes that are asked for no more
// make room.

class CachingAllocator : public c10::Allocator {
 public:
  static constexpr size_t kMostIdle = size_t{64} << 20;  ///< bytes that lie idle at most

  CachingAllocator();

  /// If memory runs out, frees idle blocks; if that is not enough, throws an Error with the bytes.
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
