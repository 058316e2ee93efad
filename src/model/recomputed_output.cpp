// SPDX-License-Identifier: Apache-2.0
#include "model/recomputed_output.hpp"

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>

#include <utility>

#include "core/error.hpp"

namespace zea {
namespace {

using Tensors = std::vector<at::Tensor>;

struct BeforeBackward : torch::autograd::FunctionPreHook {
  explicit BeforeBackward(std::function<void()> function) : call(std::move(function)) {}
  Tensors operator()(const Tensors& gradients) override {
    call();
    return gradients;
  }

  std::function<void()> call;
};

}  // namespace

RecomputedOutput::RecomputedOutput(const at::Tensor& y, std::function<at::Tensor()> recompute)
    : y_(y.detach()), bytes_(y.storage().nbytes()), recompute_(std::move(recompute)) {
  ZEA_ASSERT(y.is_contiguous() && y.storage_offset() == 0);
}

void RecomputedOutput::recompute_before(const at::Tensor& reader) {
  reader.grad_fn()->add_pre_hook(
      std::make_unique<BeforeBackward>([self = shared_from_this()] { self->recompute(); }));
}

void RecomputedOutput::free() {
  c10::StorageImpl& memory = *y_.storage().unsafeGetStorageImpl();
  memory.set_data_ptr_noswap(at::DataPtr(nullptr, y_.device()));
  memory.set_nbytes(size_t{0});
}

void RecomputedOutput::recompute() {
  if (!y_.defined()) return;
  const c10::AutoGradMode mode(false);
  const at::Tensor again = std::exchange(recompute_, nullptr)();
  ZEA_ASSERT(again.sizes() == y_.sizes() && again.is_contiguous() &&
             again.storage().nbytes() == bytes_);
  c10::StorageImpl& memory = *y_.storage().unsafeGetStorageImpl();
  memory.set_data_ptr_noswap(
      again.storage().unsafeGetStorageImpl()->set_data_ptr(at::DataPtr(nullptr, y_.device())));
  memory.set_nbytes(bytes_);
  y_.reset();  // from here on the graph alone holds it
}

}  // namespace zea
