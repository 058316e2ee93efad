// SPDX-License-Identifier: Apache-2.0
#include "train/pass_hashes.hpp"

#include <ATen/core/grad_mode.h>

#include <utility>

#include "train/tensor_hash.hpp"

namespace zea {

RunUnit PassHashes::observed(RunUnit run) {
  return [this, run = std::move(run)](const UnitArguments& call) {
    const UnitOutput made = run(call);
    if (!microbatches_) return made;
    const int index = call.unit_index();
    const int number = static_cast<int>(&call.microbatch - microbatches_->data());
    if (made.value.defined()) add(HashedValue::Output, index, number, made.value.detach());
    if (made.loss.defined()) add(HashedValue::Output, index, number, made.loss.detach());
    if (made.value.defined() && made.value.requires_grad())
      made.value.register_hook([this, index, number](const at::Tensor& gradient) {
        add(HashedValue::OutputGradient, index, number, gradient);
      });
    return made;
  };
}

ReadGradient PassHashes::gradient_reader() {
  return [this](int buffer, const at::Tensor& gradient) {
    if (!microbatches_) return;
    const auto at = static_cast<size_t>(buffer);
    if (sums_.size() <= at) sums_.resize(at + 1);
    add(HashedValue::Gradient, buffer, sums_[at]++, gradient);
  };
}

void PassHashes::begin(const std::vector<Microbatch>& microbatches) {
  microbatches_ = &microbatches;
  sums_.clear();
  hashes_.clear();
  computed_.clear();
}

ValueHashes PassHashes::end() {
  microbatches_ = nullptr;
  if (!computed_.empty()) {
    const at::Tensor all = at::stack(computed_).cpu();
    for (size_t i = 0; i < hashes_.size(); ++i) hashes_[i].hash = all.const_data_ptr<int64_t>()[i];
  }
  computed_.clear();
  return std::exchange(hashes_, {});
}

void PassHashes::add(HashedValue value, int index, int microbatch, const at::Tensor& values) {
  const at::NoGradGuard no_graph;
  hashes_.push_back({.value = value, .index = index, .microbatch = microbatch});
  computed_.push_back(hash_of(values));
}

}  // namespace zea
