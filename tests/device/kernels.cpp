// SPDX-License-Identifier: Apache-2.0
// Stands before the launchers of src/kernels/device. While a functor runs the device's memory is
// open: its pointers are the device's.
#include "device/kernels.hpp"

#include "device/device.hpp"
#include "device/functor_lists.hpp"
#include "device/launch_items.hpp"
#include "lanes.hpp"

namespace zea {
namespace testing {
namespace {

bool has_kernels = false;

}  // namespace

void have_kernels(bool do_so) {
  has_kernels = do_so;
}

}  // namespace testing

namespace detail {

/// A device's team, of one.
struct OneThread {
  int lanes() const { return 1; }
  int lane() const { return 0; }
  void sync() const {}
  template <class W, class Join>
  W all(W value, const Join&) const {
    return value;
  }
};

bool has_device_kernels() {
  return testing::has_kernels;
}

template <class Functor>
void launch_items(const Functor& functor, int64_t items, int64_t, void*) {
  testing::Device& device = testing::device();
  device.begin(device.compute());
  device.compute().drain();
  device.count_launch("a kernel of zea's");
  const testing::OpenMemory open;
  const TeamLane<OneThread> lane{OneThread()};
  for (int64_t item = 0; item < items; ++item) functor(lane, item);
}

ZEA_FOR_ROW_FUNCTORS(ZEA_INSTANTIATE_LAUNCH)
ZEA_FOR_LOGIT_FUNCTORS(ZEA_INSTANTIATE_LAUNCH)
ZEA_FOR_FLAT_FUNCTORS(ZEA_INSTANTIATE_LAUNCH)

}  // namespace detail
}  // namespace zea
