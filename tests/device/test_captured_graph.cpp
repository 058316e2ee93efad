// SPDX-License-Identifier: Apache-2.0
// Graphs of libtorch's operations on the stand-in device: nothing runs while they are captured, and
// all of it whenever they are launched; operations that a GPU would refuse, or would get wrong, are
// found.
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <gtest/gtest.h>

#include "comm/captured_graph.hpp"
#include "core/error.hpp"
#include "device/device.hpp"
#include "device/torch_device.hpp"
#include "parallel/device_memory.hpp"
#include "parallel/slots.hpp"

namespace zea::testing::test_captured_graph {
namespace {

c10::Stream new_stream() {
  return c10::impl::VirtualGuardImpl(stand_in_device().type())
      .getStreamFromGlobalPool(stand_in_device());
}

struct Captured {
  explicit Captured(const std::function<void()>& work, bool has_memory = true) {
    const c10::StreamGuard guard(stream);
    if (has_memory) memory = std::make_unique<GraphMemory>(new_graph_pool(), stream);
    graph = std::make_unique<CapturedGraph>(stream.native_handle(), work);
    if (memory) memory->close();
  }
  void launch() const { graph->launch(nullptr); }

  c10::Stream stream = new_stream();
  std::unique_ptr<GraphMemory> memory;
  std::unique_ptr<CapturedGraph> graph;
};

void expect_fault(const std::string& part) {
  std::string found;
  for (const std::string& fault : device().take_faults()) found += fault + "\n";
  EXPECT_NE(found.find(part), std::string::npos) << "found: " << found;
}

at::Tensor ones() {
  return at::ones({8}, at::TensorOptions().dtype(at::kDouble).device(stand_in_device()));
}

void expect_values(const at::Tensor& on_device, double value) {
  EXPECT_TRUE(at::equal(on_device.cpu(), at::full({8}, value, at::kDouble)));
}

TEST(CapturedGraph, RunsWhenItIsLaunchedAndAsOften) {
  const at::Tensor x = ones(), sum = ones();
  at::Tensor made;
  {
    const Captured captured([&] {
      made = x * 3;
      sum.add_(made);
    });
    expect_values(sum, 1);
    EXPECT_TRUE(made.cpu().isnan().all().item<bool>());
    captured.launch();
    expect_values(made, 3);
    expect_values(sum, 4);
    x.fill_(2);
    captured.launch();
    expect_values(made, 6);
    expect_values(sum, 10);
    made.reset();
  }
  EXPECT_TRUE(device().take_faults().empty());
}

TEST(CapturedGraph, IsFoundToUseMemoryThatWasFreed) {
  at::Tensor x = ones();
  const at::Tensor sum = ones();
  const Captured captured([&] { sum.add_(x); });
  captured.launch();
  EXPECT_TRUE(device().take_faults().empty());
  x.reset();
  captured.launch();
  expect_fault("uses memory that was freed");
}

TEST(CapturedGraph, IsFoundToHaveMemoryThatIsNotItsOwn) {
  const at::Tensor x = ones();
  const Captured captured([&] { x * 2; }, false);
  expect_fault("memory is allocated in a capture, but not of the graph's");
}

TEST(CapturedGraph, HasMemoryThatOthersAreFoundToUse) {
  const at::Tensor x = ones();
  const void* data = nullptr;
  const Captured captured([&] { data = (x * 2).const_data_ptr(); });
  device().uses(device().compute(), data, 8, false, "a reader");
  expect_fault("a reader uses memory that was freed");
}

TEST(CapturedGraph, IsFoundToReadOnTheHost) {
  const at::Tensor x = ones();
  const Captured read([&] { x.sum().item<double>(); });
  expect_fault("a value is read by the host in a capture");
  const Captured copied([&] { x.cpu(); });
  expect_fault("a copy between the host and the device in a capture");
  const at::Tensor host = at::ones({8}, at::kDouble);
  const Captured written([&] { x.copy_(host); });
  expect_fault("a copy between the host and the device in a capture");
}

TEST(CapturedGraph, IsFoundToAskHowFarTheDeviceIs) {
  c10::Event before(stand_in_device().type());
  before.record(current_stream(stand_in_device()));
  const Captured captured([&] { before.query(); });
  expect_fault("a query of an event by the thread that captures");
}

TEST(CapturedGraph, IsFoundToForgetAStream) {
  const at::Tensor x = ones();
  const auto work_beside = [&](bool joins) {
    const c10::Stream own = current_stream(x.device()), other = new_stream();
    c10::Event given(x.device().type()), done(x.device().type());
    given.record(own);
    given.block(other);
    {
      const c10::StreamGuard guard(other);
      x.add_(1);
    }
    done.record(other);
    if (joins) done.block(own);
  };
  EXPECT_THROW(Captured([&] { work_beside(false); }), CommError);
  expect_fault("a capture ends before it has waited for stream");
  const Captured captured([&] { work_beside(true); });
  captured.launch();
  expect_values(x, 2);
  EXPECT_TRUE(device().take_faults().empty());
}

TEST(CapturedGraph, IsFoundToOrderNothing) {
  const at::Tensor x = ones();
  const Captured captured([&] {
    const c10::Stream own = current_stream(x.device()), other = new_stream();
    c10::Event given(x.device().type()), done(x.device().type());
    given.record(own);
    given.block(other);
    x.add_(1);  // after the event
    {
      const c10::StreamGuard guard(other);
      x.add_(1);
    }
    done.record(other);
    done.block(own);
  });
  captured.launch();
  expect_fault("no event orders them");
}

}  // namespace
}  // namespace zea::testing::test_captured_graph
