// SPDX-License-Identifier: Apache-2.0
// Replaces the launchers of src/kernels/device. A functor runs with the pointers of the device's
// threads; the host's calls cannot access the memory.
#include "device/kernels.hpp"

#include <cxxabi.h>

#include <type_traits>
#include <typeinfo>

#include "device/device.hpp"
#include "device/watched_accesses.hpp"
#include "kernels/device/functor_lists.hpp"
#include "kernels/device/launch_items.hpp"
#include "kernels/lanes.hpp"

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

std::string name_of(const std::type_info& type) {
  const std::unique_ptr<char, decltype(&std::free)> name(
      abi::__cxa_demangle(type.name(), nullptr, nullptr, nullptr), &std::free);
  return name ? name.get() : type.name();
}

template <class Functor>
[[gnu::noinline]] void run_items(const Functor& functor, int64_t items, testing::Stream& stream) {
  testing::Device& device = testing::device();
  device.begin(stream);
  stream.settle();
  static_assert(std::is_trivially_copyable_v<Functor>);
  Functor own = functor;  // as a launch passes it, all that it points to in itself
  device.open_all(&own, sizeof(own));
  const TeamLane<OneThread> lane{OneThread()};
  testing::WatchedAccesses accesses;
  {
    const testing::Watch watch(accesses, __builtin_frame_address(0));
    for (int64_t item = 0; item < items; ++item) own(lane, item);
  }
  const std::string name = name_of(typeid(Functor));
  for (const bool writes : {false, true})
    for (const auto& [begin, end] : writes ? accesses.written() : accesses.read())
      device.uses(stream, device.closed(begin), end - begin, writes, name);
}

template <class Functor>
void launch_items(const Functor& functor, int64_t items, int64_t, void* handle) {
  testing::Device& device = testing::device();
  testing::Stream& stream =
      handle == nullptr ? device.compute() : *static_cast<testing::Stream*>(handle);
  device.count_launch("a kernel of zea's");
  device.submit(stream, [functor, items](testing::Stream& in) { run_items(functor, items, in); });
}

ZEA_FOR_ROW_FUNCTORS(ZEA_INSTANTIATE_LAUNCH)
ZEA_FOR_LOGIT_FUNCTORS(ZEA_INSTANTIATE_LAUNCH)
ZEA_FOR_FLAT_FUNCTORS(ZEA_INSTANTIATE_LAUNCH)

}  // namespace detail
}  // namespace zea
