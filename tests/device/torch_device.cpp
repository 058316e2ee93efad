// SPDX-License-Identifier: Apache-2.0
#include "device/torch_device.hpp"

#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/Resize.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

#include <set>

#include "device/device.hpp"
#include "zea/core/error.hpp"

namespace zea::testing {
namespace {

using torch::jit::Stack;

constexpr auto kType = at::DeviceType::PrivateUse1;
const at::Device kDevice(kType, 0);

// What libtorch asks of any device.

/// The computing stream, 0, and those that libtorch was given beside it, by id.
class Streams {
 public:
  Stream& of(at::StreamId id) {
    const std::lock_guard lock(mutex_);
    return id == 0 ? device().compute() : *beside_[static_cast<size_t>(id) - 1];
  }
  at::StreamId make() {
    const std::lock_guard lock(mutex_);
    beside_.push_back(device().make_stream());
    return std::ssize(beside_);
  }

 private:
  std::mutex mutex_;
  std::vector<std::unique_ptr<Stream>> beside_;
};

Streams& streams() {
  static Streams* all = new Streams;  // they outlive whatever ends with the program
  return *all;
}

thread_local at::StreamId current_id = 0;

/// What operations of this thread are put into.
Stream& current() {
  return streams().of(current_id);
}

/// Memory that a stream beside the computing one owns or uses.
class Owners {
 public:
  struct Block {
    at::StreamId stream;
    std::set<at::StreamId> users = {};  ///< other streams, which its next owner waits for
  };
  using Blocks = std::map<void*, Block>;

  void add(void* data, at::StreamId stream) {
    const std::lock_guard lock(mutex_);
    blocks_.insert_or_assign(data, Block{stream});
  }
  void note(void* data, at::StreamId user) {
    const std::lock_guard lock(mutex_);
    blocks_.try_emplace(data, Block{0}).first->second.users.insert(user);
  }
  /// Empty: it is the computing stream's alone.
  Blocks::node_type take(void* data) {
    const std::lock_guard lock(mutex_);
    return blocks_.extract(data);
  }

 private:
  std::mutex mutex_;
  Blocks blocks_;
};

Owners& owners() {
  static Owners* all = new Owners;  // they outlive whatever ends with the program
  return *all;
}

/// Of blocks that are as large as what was asked for; what it reserves it never gives back.
class Allocator : public c10::DeviceAllocator {
 public:
  at::DataPtr allocate(size_t bytes) override {
    void* data = device().allocate(bytes);
    if (current_id != 0) owners().add(data, current_id);
    return {data, data, raw_deleter(), kDevice};
  }
  at::DeleterFnPtr raw_deleter() const override {
    return [](void* freed) {
      const Owners::Blocks::node_type block = owners().take(freed);
      if (block.empty()) return device().free_in_order(freed, device().compute());
      std::vector<Stream*> users;
      for (const at::StreamId id : block.mapped().users) users.push_back(&streams().of(id));
      device().free_in_order(freed, streams().of(block.mapped().stream), users);
    };
  }
  void copy_data(void*, const void*, size_t) const override {
    throw std::logic_error("libtorch copies the stand-in device's memory by itself");
  }
  bool initialized() override { return true; }
  void emptyCache(c10::MempoolId_t) override {}
  void recordStream(const at::DataPtr& data, c10::Stream stream) override {
    owners().note(data.get(), stream.id());
  }
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex) override {
    const MemoryCount count = device().memory();
    c10::CachingDeviceAllocator::DeviceStats stats;
    const auto all = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
    for (auto* stat : {&stats.allocated_bytes[all], &stats.requested_bytes[all]}) {
      stat->current = count.allocated;
      stat->peak = count.peak_allocated;
    }
    stats.reserved_bytes[all].current = stats.reserved_bytes[all].peak = count.reserved;
    return stats;
  }
  void resetAccumulatedStats(c10::DeviceIndex) override {}
  void resetPeakStats(c10::DeviceIndex) override { device().reset_peak(); }
};

class PinnedAllocator : public at::Allocator {
 public:
  at::DataPtr allocate(size_t bytes) override {
    void* data = device().allocate_pinned(bytes);
    return {data, data, [](void* freed) { device().free_pinned(freed); }, at::kCPU};
  }
  void copy_data(void* target, const void* source, size_t bytes) const override {
    std::memcpy(target, source, bytes);
  }
};

using Event = std::shared_ptr<Mark>;

class Guard : public c10::impl::DeviceGuardImplInterface {
 public:
  at::DeviceType type() const override { return kType; }
  at::Device exchangeDevice(at::Device) const override { return kDevice; }
  at::Device getDevice() const override { return kDevice; }
  void setDevice(at::Device) const override {}
  void uncheckedSetDevice(at::Device) const noexcept override {}
  at::Stream getStream(at::Device) const override { return stream_of(current_id); }
  at::Stream getStreamFromGlobalPool(at::Device, bool) const override {
    return stream_of(streams().make());
  }
  void* getStreamNativeHandle(const at::Stream stream) const override {
    return stream.id() == 0 ? nullptr : &streams().of(stream.id());
  }
  at::Stream exchangeStream(at::Stream stream) const override {
    return stream_of(std::exchange(current_id, stream.id()));
  }
  void record(void** event, const at::Stream& stream, const at::DeviceIndex,
              const c10::EventFlag) const override {
    destroyEvent(*event, 0);
    *event = new Event(device().record(streams().of(stream.id())));
  }
  void block(void* event, const at::Stream& stream) const override {
    device().wait(streams().of(stream.id()), *static_cast<Event*>(event));
  }
  void synchronizeEvent(void* event) const override {
    const Event& mark = *static_cast<Event*>(event);
    mark->wait();
    device().host_awaits(mark->seen);
  }
  void destroyEvent(void* event, const at::DeviceIndex) const noexcept override {
    delete static_cast<Event*>(event);
  }
  at::DeviceIndex deviceCount() const noexcept override { return 1; }

 private:
  static at::Stream stream_of(at::StreamId id) {
    return at::Stream(at::Stream::UNSAFE, kDevice, id);
  }
};

PinnedAllocator pinned_allocator;

struct Hooks : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(at::DeviceIndex) const override { return true; }
  bool isPinnedPtr(const void* data) const override { return device().is_pinned(data); }
  at::Allocator* getPinnedMemoryAllocator() const override { return &pinned_allocator; }
  void resizePrivateUse1Bytes(const at::Storage& storage, size_t bytes) const override {
    if (bytes > storage.nbytes())
      throw std::logic_error("an operation makes a tensor of the stand-in device larger");
  }
};

Allocator allocator;
Hooks hooks;

// A tensor of the device and the CPU's of the same bytes.

size_t span_of(const at::Tensor& tensor) {
  return tensor.numel() == 0 ? 0
                             : at::detail::computeStorageNbytes(tensor.sizes(), tensor.strides(),
                                                                tensor.element_size());
}

/// Set while operations together stand for one of the device's.
thread_local bool operations_of_one = false;

void count_launch(const std::string& operation) {
  if (!operations_of_one) device().count_launch(operation);
}

/// For one operation that is run now, after what its thread's stream has been given.
class Opened {
 public:
  explicit Opened(const std::string& operation) : operation_(operation) {
    device().begin(stream_);
    stream_.drain();
  }

  at::Tensor open(const at::Tensor& tensor, bool writes) {
    if (!tensor.defined() || tensor.device().type() != kType) return tensor;
    if (tensor.numel() == 0) return at::empty(tensor.sizes(), tensor.options().device(at::kCPU));
    const void* data = tensor.const_data_ptr();
    device().uses(stream_, data, span_of(tensor), writes, operation_);
    inputs_.push_back(tensor);
    return at::from_blob(device().open(data), tensor.sizes(), tensor.strides(),
                         tensor.options().device(at::kCPU).requires_grad(false));
  }

  /// What the operation gave, back on the device: a view of an input where it is one.
  at::Tensor close(const at::Tensor& made) {
    if (!made.defined()) return made;
    for (const at::Tensor& input : inputs_)
      if (made.numel() > 0 && input.numel() > 0 && lies_in(made, input))
        return view_of(made, input);
    const at::Tensor closed =
        at::empty_strided(made.sizes(), made.strides(), made.options().device(kDevice));
    if (made.numel() > 0) open(closed, true).copy_(made);
    return closed;
  }

  /// Gives what was written where there had been nothing to the tensor that asked for it.
  void settle(const at::Tensor& given, const at::Tensor& made) {
    if (given.device().type() != kType || given.sizes() == made.sizes()) return;
    ZEA_ASSERT(given.numel() == 0);
    const at::Tensor closed = close(made);
    given.unsafeGetTensorImpl()->set_storage_keep_dtype(closed.storage());
    given.unsafeGetTensorImpl()->set_sizes_and_strides(closed.sizes(), closed.strides());
  }

 private:
  static bool lies_in(const at::Tensor& made, const at::Tensor& input) {
    const char* begin = device().open(input.storage().data());
    const char* at = static_cast<const char*>(made.const_data_ptr());
    return at >= begin && at < begin + input.storage().nbytes();
  }
  static at::Tensor view_of(const at::Tensor& made, const at::Tensor& input) {
    const char* begin = device().open(input.storage().data());
    const int64_t bytes = static_cast<const char*>(made.const_data_ptr()) - begin;
    at::Tensor view = at::detail::make_tensor<at::TensorImpl>(
        c10::Storage(input.storage()), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
        made.dtype());
    view.unsafeGetTensorImpl()->set_sizes_and_strides(made.sizes(), made.strides(),
                                                      bytes / made.element_size());
    return view;
  }

  Stream& stream_ = current();
  std::string operation_;
  std::vector<at::Tensor> inputs_;
};

// Every operation that has no other way.

/// The argument as the CPU gets it; tensors in lists, too.
c10::IValue opened(Opened& open, const c10::IValue& value, bool writes) {
  if (value.isTensor()) return open.open(value.toTensor(), writes);
  if (value.isTensorList()) {
    c10::List<at::Tensor> tensors;
    for (const at::Tensor& tensor : value.toTensorVector())
      tensors.push_back(open.open(tensor, writes));
    return tensors;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> tensors;
    for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorVector())
      tensors.push_back(tensor ? std::optional(open.open(*tensor, writes)) : std::nullopt);
    return tensors;
  }
  if (value.isDevice() && value.toDevice().type() == kType) return at::Device(at::kCPU);
  return value;
}

c10::IValue closed(Opened& open, const c10::IValue& value) {
  if (value.isTensor()) return open.close(value.toTensor());
  if (!value.isTensorList()) return value;
  c10::List<at::Tensor> tensors;
  for (const at::Tensor& tensor : value.toTensorVector()) tensors.push_back(open.close(tensor));
  return tensors;
}

bool writes(const c10::AliasInfo* alias) {
  return alias != nullptr && alias->isWrite();
}

/// Where `returned` is one of the arguments that are written, which one; -1 for none.
int argument_of(const c10::FunctionSchema& schema, const c10::AliasInfo* returned) {
  if (!writes(returned)) return -1;
  for (size_t i = 0; i < schema.arguments().size(); ++i) {
    const c10::AliasInfo* alias = schema.arguments()[i].alias_info();
    if (writes(alias) && alias->beforeSets() == returned->beforeSets()) return static_cast<int>(i);
  }
  return -1;
}

bool gives_views(const c10::FunctionSchema& schema) {
  return std::any_of(schema.returns().begin(), schema.returns().end(),
                     [](const c10::Argument& returned) {
                       return returned.alias_info() != nullptr && !returned.alias_info()->isWrite();
                     });
}

void run_on_cpu(const c10::OperatorHandle& operation, Stack* stack) {
  const c10::FunctionSchema& schema = operation.schema();
  if (!gives_views(schema)) count_launch(schema.name());
  Opened open(schema.name());
  const size_t count = schema.arguments().size();
  const Stack given(stack->end() - static_cast<ptrdiff_t>(count), stack->end());
  Stack values;
  for (size_t i = 0; i < count; ++i)
    values.push_back(opened(open, given[i], writes(schema.arguments()[i].alias_info())));
  operation.callBoxed(&values);
  torch::jit::drop(*stack, count);
  for (size_t i = 0; i < values.size(); ++i) {
    const int same = argument_of(schema, schema.returns()[i].alias_info());
    if (same >= 0) open.settle(given[same].toTensor(), values[i].toTensor());
    stack->push_back(same >= 0 ? given[same] : closed(open, values[i]));
  }
}

// Operations that a device has to have.

at::Tensor empty_strided(c10::SymIntArrayRef sizes, c10::SymIntArrayRef strides,
                         std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                         std::optional<at::Device>, std::optional<bool>) {
  return at::Tensor(at::detail::empty_strided_generic(
      C10_AS_INTARRAYREF_SLOW(sizes), C10_AS_INTARRAYREF_SLOW(strides), &allocator,
      c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), at::dtype_or_default(dtype)));
}

at::Tensor empty(c10::SymIntArrayRef sizes, std::optional<at::ScalarType> dtype,
                 std::optional<at::Layout>, std::optional<at::Device>, std::optional<bool>,
                 std::optional<at::MemoryFormat> format) {
  return at::Tensor(at::detail::empty_generic(C10_AS_INTARRAYREF_SLOW(sizes), &allocator,
                                              c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                              at::dtype_or_default(dtype), format));
}

at::Tensor as_strided(const at::Tensor& self, c10::SymIntArrayRef sizes,
                      c10::SymIntArrayRef strides, std::optional<c10::SymInt> offset) {
  return at::native::as_strided_tensorimpl(
      self, C10_AS_INTARRAYREF_SLOW(sizes), C10_AS_INTARRAYREF_SLOW(strides),
      offset ? std::optional(offset->expect_int()) : std::nullopt);
}

at::Tensor view(const at::Tensor& self, c10::SymIntArrayRef sizes) {
  return at::native::view(self, C10_AS_INTARRAYREF_SLOW(sizes));
}

at::Tensor reshape_alias(const at::Tensor& self, c10::SymIntArrayRef sizes,
                         c10::SymIntArrayRef strides) {
  return at::native::_reshape_alias(self, C10_AS_INTARRAYREF_SLOW(sizes),
                                    C10_AS_INTARRAYREF_SLOW(strides));
}

/// Between the device and the host, and on the device. The host waits for its end, but where it
/// asks not to and its memory is pinned.
at::Tensor copy_from(const at::Tensor& self, const at::Tensor& target, bool non_blocking) {
  count_launch(current_id == 0 ? "copy" : "copy beside");
  Opened open("copy");
  const at::Tensor source = open.open(self, false);
  open.open(target, true).copy_(source);
  const at::Tensor& host = self.is_cpu() ? self : target;
  if (!host.is_cpu()) return target;
  const bool goes_on = non_blocking && device().is_pinned(host.const_data_ptr());
  if (goes_on)
    device().hold(host.const_data_ptr(), current(), target.is_cpu());
  else
    device().host_awaits(current().clock());
  return target;
}

at::Scalar local_scalar(const at::Tensor& self) {
  count_launch("item");
  Opened open("item");
  const at::Scalar value = open.open(self, false).item();
  device().host_awaits(current().clock());
  return value;
}

void record_stream(at::Tensor& self, at::Stream stream) {
  allocator.recordStream(self.storage().data_ptr(), stream);
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&run_on_cpu>());
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", &empty);
  m.impl("empty_strided", &empty_strided);
  m.impl("as_strided", &as_strided);
  m.impl("view", &view);
  m.impl("_reshape_alias", &reshape_alias);
  m.impl("_copy_from", &copy_from);
  m.impl("_local_scalar_dense", &local_scalar);
  m.impl("record_stream", &record_stream);
}

const c10::impl::DeviceGuardImplRegistrar registrar(kType, new Guard);

}  // namespace

OneLaunch::OneLaunch(const char* operation) {
  device().count_launch(operation);
  operations_of_one = true;
}

OneLaunch::~OneLaunch() {
  operations_of_one = false;
}

at::Device stand_in_device() {
  static const bool is_registered = [] {
    c10::register_privateuse1_backend("stand_in");
    c10::SetAllocator(kType, &allocator);
    at::RegisterPrivateUse1HooksInterface(&hooks);
    return true;
  }();
  static_cast<void>(is_registered);
  return kDevice;
}

std::unique_ptr<Collectives> make_stand_in_collectives(const Communicator& communicator) {
  if (communicator.size() == 1) return make_mpi_collectives(communicator);
  return make_nccl_collectives(communicator,
                               []() -> void* { return current_id == 0 ? nullptr : &current(); });
}

}  // namespace zea::testing
