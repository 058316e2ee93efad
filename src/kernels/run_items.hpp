// SPDX-License-Identifier: Apache-2.0
// Runs a row functor where a tensor is: on the cores of the host, or on a device.
#pragma once

#include "kernels/device/launch_items.hpp"
#include "kernels/elements.hpp"
#include "kernels/host_lane.hpp"
#include "kernels/launch.hpp"

namespace zea::detail {

/// Whether kernels take tensors like `x`, by their type and device; libtorch's operations take the
/// others.
bool runs_kernels(const at::Tensor& x);

/// libtorch's stream of a tensor's device at the time of the call, a cudaStream_t.
void* stream_of(const at::Tensor& x);

/// Of a device's lanes; an item has so many elements like those of `x`.
inline int64_t num_packs(const at::Tensor& x, int64_t elements) {
  return (elements * x.element_size() + static_cast<int64_t>(kPackBytes) - 1) /
         static_cast<int64_t>(kPackBytes);
}

template <class Functor>
ZEA_WIDE_CLONES void run_on_host(const Functor& functor, int64_t begin, int64_t end) {
  const Functor own = functor;  // no store can change it
  for (int64_t item = begin; item < end; ++item) own(HostLane{}, item);
}

template <class Functor>
void run_items_on_host(const Functor& functor, int64_t items, int64_t item_elements) {
  for_each_chunk(
      items, [&](int64_t, int64_t begin, int64_t end) { run_on_host(functor, begin, end); },
      rows_per_chunk(item_elements));
}

/// functor(lane, item) for all items, of about `item_elements` each.
template <class Functor>
void run_items(const at::Tensor& where, const Functor& functor, int64_t items,
               int64_t item_elements) {
  if (where.is_cpu()) return run_items_on_host(functor, items, item_elements);
  launch_items(functor, items, num_packs(where, item_elements), stream_of(where));
}

}  // namespace zea::detail
