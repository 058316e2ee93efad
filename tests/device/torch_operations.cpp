// SPDX-License-Identifier: Apache-2.0
// libtorch's operations on the stand-in device: those of the CPU over the same bytes.
#include <ATen/ATen.h>
#include <ATen/native/Resize.h>
#include <torch/library.h>

#include "core/error.hpp"
#include "device/capture.hpp"
#include "device/torch_device.hpp"
#include "device/torch_parts.hpp"

namespace zea::testing {
namespace {

using torch::jit::Stack;

// A tensor of the device and the CPU's of the same bytes.

size_t span_of(const at::Tensor& tensor) {
  return tensor.numel() == 0 ? 0
                             : at::detail::computeStorageNbytes(tensor.sizes(), tensor.strides(),
                                                                tensor.element_size());
}

/// Set while several operations count as one of the device's.
thread_local bool operations_of_one = false;

void count_launch(const std::string& operation) {
  if (!operations_of_one) device().count_launch(operation);
}

/// Adds the seconds of an operation to the virtual time of its thread's stream.
void spend(const std::string& operation, double flops) {
  Stream& stream = current_torch_stream();
  if (!device().costs() || flops == 0 || stream.capture) return;
  const double seconds = flops / device().costs()->flops_per_second;
  stream.push_aside([&stream, seconds, operation] {
    const double begin = stream.time();
    device().spend(stream,
                   {.name = operation, .begin = begin, .met = begin, .end = begin + seconds});
  });
}

/// Bytes that an operation reads or writes.
struct Use {
  const void* data;
  size_t bytes;
  bool writes;
};

/// Opens the device's memory for one operation that runs now, after the work of its thread's
/// stream; if that is captured, also whenever the graph is launched.
class Opened {
 public:
  explicit Opened(const std::string& operation) : operation_(operation) {
    if (is_captured()) return;
    device().begin(stream_);
    stream_.settle();
  }

  bool is_captured() const { return stream_.capture != nullptr; }
  /// Returns whether it writes memory that a graph will write when it is launched, which must not
  /// be written now.
  bool writes_later() const { return writes_later_; }

  /// Runs `run`, which holds the operation with its opened and made tensors, in every launch.
  void keep(std::function<void()> run) {
    device().submit(stream_, [run = std::move(run), uses = uses_, what = operation_](Stream& in) {
      device().begin(in);
      in.settle();
      for (const Use& use : uses) device().uses(in, use.data, use.bytes, use.writes, what);
      const at::AutoDispatchBelowADInplaceOrView below;
      run();
    });
  }
  /// Returns the tensors that hold the operation's results, in the order of the calls of close();
  /// undefined for views and empty tensors.
  const std::vector<at::Tensor>& results() const { return results_; }

  at::Tensor open(const at::Tensor& tensor, bool writes) {
    if (!tensor.defined() || tensor.device().type() != kType) return tensor;
    if (tensor.numel() == 0) return at::empty(tensor.sizes(), tensor.options().device(at::kCPU));
    const void* data = tensor.const_data_ptr();
    if (is_captured())
      uses_.push_back({data, span_of(tensor), writes});
    else
      device().uses(stream_, data, span_of(tensor), writes, operation_);
    writes_later_ |= is_captured() && writes && !device().is_of_pool(data);
    inputs_.push_back(tensor);
    return at::from_blob(device().open(data), tensor.sizes(), tensor.strides(),
                         tensor.options().device(at::kCPU).requires_grad(false));
  }

  /// Returns the operation's result on the device: a view of an input if it is one.
  at::Tensor close(const at::Tensor& made) {
    at::Tensor& result = results_.emplace_back();
    if (!made.defined()) return made;
    for (const at::Tensor& input : inputs_)
      if (made.numel() > 0 && input.numel() > 0 && lies_in(made, input))
        return view_of(made, input);
    const at::Tensor closed =
        at::empty_strided(made.sizes(), made.strides(), made.options().device(kDevice));
    if (made.numel() > 0) result = open(closed, true).copy_(made);
    return closed;
  }

  /// Moves data that was written into an empty tensor to the tensor that asked for it; returns
  /// whether there was such a tensor.
  bool settle(const at::Tensor& given, const at::Tensor& made) {
    if (given.device().type() != kType || given.sizes() == made.sizes()) return false;
    ZEA_ASSERT(given.numel() == 0);
    const at::Tensor closed = close(made);
    given.unsafeGetTensorImpl()->set_storage_keep_dtype(closed.storage());
    given.unsafeGetTensorImpl()->set_sizes_and_strides(closed.sizes(), closed.strides());
    return true;
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

  Stream& stream_ = current_torch_stream();
  std::string operation_;
  std::vector<at::Tensor> inputs_;
  std::vector<Use> uses_;
  std::vector<at::Tensor> results_;
  bool writes_later_ = false;
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

/// Adds the tensors among an operation's results that close() was called with.
void add_closed(const c10::IValue& value, std::vector<at::Tensor>& closed) {
  if (value.isTensor()) closed.push_back(value.toTensor());
  if (!value.isTensorList()) return;
  for (const at::Tensor& tensor : value.toTensorVector()) closed.push_back(tensor);
}

/// Returns the operation on the same memory, with its results in the memory that they were put into
/// first. `are_closed`: the values that close() was called with.
std::function<void()> again(const c10::OperatorHandle& operation, const Stack& values,
                            const std::vector<bool>& are_closed,
                            const std::vector<at::Tensor>& results) {
  return [=] {
    Stack given = values;
    operation.callBoxed(&given);
    std::vector<at::Tensor> made;
    for (size_t i = 0; i < are_closed.size(); ++i)
      if (are_closed[i]) add_closed(given[i], made);
    for (size_t i = 0; i < results.size(); ++i)
      if (results[i].defined()) at::Tensor(results[i]).copy_(made.at(i));
  };
}

/// FLOPs of an operation that is a GEMM, or a batch of them; 0 for all others, and for those that
/// are a part of one operation of the device.
double gemm_flops(const std::string& name, const Stack& arguments) {
  const bool adds = name == "aten::addmm" || name == "aten::addmm_" || name == "aten::baddbmm" ||
                    name == "aten::baddbmm_";
  if (operations_of_one || (!adds && name != "aten::mm" && name != "aten::bmm")) return 0;
  const at::Tensor &a = arguments[adds].toTensor(), b = arguments[adds + 1].toTensor();
  return 2.0 * static_cast<double>(a.numel()) * static_cast<double>(b.size(-1));
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
  torch::jit::drop(*stack, count);
  const Stack arguments = values;
  std::vector<bool> are_closed;
  if (open.writes_later()) {
    for (const c10::Argument& returned : schema.returns())
      stack->push_back(given.at(argument_of(schema, returned.alias_info())));
    return open.keep(again(operation, arguments, are_closed, {}));
  }
  spend(schema.name(), gemm_flops(schema.name(), arguments));
  operation.callBoxed(&values);
  for (size_t i = 0; i < values.size(); ++i) {
    const int same = argument_of(schema, schema.returns()[i].alias_info());
    are_closed.push_back(same >= 0 ? open.settle(given[same].toTensor(), values[i].toTensor())
                                   : true);
    stack->push_back(same >= 0 ? given[same] : closed(open, values[i]));
  }
  const bool has_results = std::ranges::any_of(
      open.results(), [](const at::Tensor& result) { return result.defined(); });
  if (open.is_captured() && (has_results || !gives_views(schema)))
    open.keep(again(operation, arguments, are_closed, open.results()));
}

// Operations that a device has to have.

at::Tensor empty_strided(c10::SymIntArrayRef sizes, c10::SymIntArrayRef strides,
                         std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                         std::optional<at::Device>, std::optional<bool>) {
  return at::Tensor(at::detail::empty_strided_generic(
      C10_AS_INTARRAYREF_SLOW(sizes), C10_AS_INTARRAYREF_SLOW(strides), &torch_allocator(),
      c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), at::dtype_or_default(dtype)));
}

at::Tensor empty(c10::SymIntArrayRef sizes, std::optional<at::ScalarType> dtype,
                 std::optional<at::Layout>, std::optional<at::Device>, std::optional<bool>,
                 std::optional<at::MemoryFormat> format) {
  return at::Tensor(at::detail::empty_generic(C10_AS_INTARRAYREF_SLOW(sizes), &torch_allocator(),
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

/// The host does: for all that its thread's stream was given. The device reads the copies that are
/// a part of one of its operations.
void await_stream() {
  current_torch_stream().drain();
  if (!operations_of_one) device().host_awaits(current_torch_stream().clock());
}

/// Between the device and the host, and on the device. The host waits for its end, but where it
/// asks not to and its memory is pinned.
at::Tensor copy_from(const at::Tensor& self, const at::Tensor& target, bool non_blocking) {
  count_launch(&current_torch_stream() == &device().compute() ? "copy" : "copy beside");
  Opened open("copy");
  const at::Tensor source = open.open(self, false), there = open.open(target, true);
  const at::Tensor& host = self.is_cpu() ? self : target;
  if (open.is_captured() && host.is_cpu()) {
    device().fail("a copy between the host and the device in a capture");
    return target;
  }
  if (!open.writes_later()) at::Tensor(there).copy_(source);
  if (open.is_captured()) open.keep([=] { at::Tensor(there).copy_(source); });
  if (!host.is_cpu()) return target;
  const bool goes_on = non_blocking && device().is_pinned(host.const_data_ptr());
  if (goes_on)
    device().hold(host.const_data_ptr(), current_torch_stream(), target.is_cpu());
  else
    await_stream();
  return target;
}

at::Scalar local_scalar(const at::Tensor& self) {
  count_launch("item");
  Opened open("item");
  if (open.is_captured()) device().fail("a value is read by the host in a capture");
  const at::Scalar value = open.open(self, false).item();
  await_stream();
  return value;
}

void record_stream(at::Tensor& self, at::Stream stream) {
  torch_allocator().recordStream(self.storage().data_ptr(), stream);
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

}  // namespace

OneLaunch::OneLaunch(const char* operation, double flops) {
  device().count_launch(operation);
  spend(operation, flops);
  operations_of_one = true;
}

OneLaunch::~OneLaunch() {
  operations_of_one = false;
}

}  // namespace zea::testing
