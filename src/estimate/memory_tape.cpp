// SPDX-License-Identifier: Apache-2.0
#include "estimate/memory_tape.hpp"

#include <algorithm>

namespace zea::detail {

int MemoryTape::input(int64_t bytes, bool needs_gradient) {
  tensors_.push_back(
      {.bytes = bytes, .needs_gradient = keeps_graph_ && needs_gradient, .is_input = true});
  return static_cast<int>(tensors_.size()) - 1;
}

int MemoryTape::call(const FunctionMemory& function, const std::vector<int>& inputs) {
  if (function.changes_input) {
    tensors_[inputs[0]].is_changed = true;
    live_ -= tensors_[inputs[0]].bytes;
  }
  touch(std::max(function.forward_peak, function.output + function.saved));
  const int output = static_cast<int>(tensors_.size());
  const bool differentiates =
      keeps_graph_ && (function.trains || std::any_of(inputs.begin(), inputs.end(), [&](int input) {
                         return tensors_[input].needs_gradient;
                       }));
  tensors_.push_back({.bytes = function.output, .needs_gradient = differentiates, .holders = 1});
  locals_.push_back(output);
  take(function.output);
  if (!differentiates) return output;
  take(function.saved);
  if (function.saves_input) ++tensors_[inputs[0]].holders;
  if (function.saves_output) ++tensors_[output].holders;
  nodes_.push_back({function, inputs, output});
  return output;
}

void MemoryTape::drop(int tensor) {
  const auto local = std::find(locals_.begin(), locals_.end(), tensor);
  if (local == locals_.end()) return;
  locals_.erase(local);
  let_go(tensor);
}

UnitMemory MemoryTape::finish(int output) {
  UnitMemory memory;
  memory.output_bytes = tensors_[output].bytes;
  memory.forward_peak_bytes = peak_;
  // From here on the output is the caller's, and it is all that is left of what the unit held.
  locals_.clear();
  live_ -= tensors_[output].bytes;
  tensors_[output].is_input = true;
  memory.saved_bytes = peak_ = live_;
  // Its gradient too: the caller is one of its two holders.
  gradients_.push_back({.bytes = tensors_[output].bytes, .holders = 2});
  tensors_[output].gradient = 0;
  for (size_t n = nodes_.size(); n-- > 0;) run_backward(nodes_[n]);
  for (int t = 0; t < static_cast<int>(tensors_.size()); ++t) {
    const Tensor& tensor = tensors_[t];
    if (!tensor.is_input || t == output) continue;
    const bool has = tensor.gradient >= 0;
    // A leaf keeps a gradient that nobody else holds, and copies one that somebody does.
    if (has && gradients_[tensor.gradient].holders > 1) take(tensor.bytes);
    memory.input_gradient_bytes.push_back(has ? tensor.bytes : 0);
  }
  memory.backward_peak_bytes = peak_;
  return memory;
}

void MemoryTape::run_backward(const Node& node) {
  const int own = tensors_[node.output].gradient;
  if (own < 0) return;
  const FunctionMemory& function = node.function;
  std::vector<int> made(node.inputs.size(), -1);
  for (size_t i = 0; i < node.inputs.size(); ++i) {
    if (!tensors_[node.inputs[i]].needs_gradient) continue;
    const int64_t bytes = tensors_[node.inputs[i]].bytes;
    const bool passes = function.changes_input
                            ? i == 0
                            : function.passes_gradient && bytes == gradients_[own].bytes;
    made[i] = passes ? own : new_gradient(bytes);
    ++gradients_[made[i]].holders;
  }
  touch(function.backward_working);
  if (std::any_of(made.begin(), made.end(), [](int gradient) { return gradient >= 0; }))
    touch(function.gradient_working);
  let_go_gradient(own);
  live_ -= function.saved;
  if (function.saves_input) let_go(node.inputs[0]);
  if (function.saves_output) let_go(node.output);
  for (size_t i = 0; i < node.inputs.size(); ++i)
    if (made[i] >= 0) add_gradient(node.inputs[i], made[i]);
}

/// `gradient` comes with a holder, which becomes the tensor's.
void MemoryTape::add_gradient(int tensor, int gradient) {
  const int before = tensors_[tensor].gradient;
  if (before < 0) {
    tensors_[tensor].gradient = gradient;
    return;
  }
  int sum = before;
  if (gradients_[before].holders > 1) {
    sum = new_gradient(tensors_[tensor].bytes);
    ++gradients_[sum].holders;
    let_go_gradient(before);
  }
  let_go_gradient(gradient);
  tensors_[tensor].gradient = sum;
}

void MemoryTape::take(int64_t bytes) {
  live_ += bytes;
  peak_ = std::max(peak_, live_);
}

void MemoryTape::touch(int64_t bytes) {
  peak_ = std::max(peak_, live_ + bytes);
}

void MemoryTape::let_go(int tensor) {
  Tensor& held = tensors_[tensor];
  if (--held.holders == 0 && !held.is_input && !held.is_changed) live_ -= held.bytes;
}

int MemoryTape::new_gradient(int64_t bytes) {
  gradients_.push_back({.bytes = bytes});
  take(bytes);
  return static_cast<int>(gradients_.size()) - 1;
}

void MemoryTape::let_go_gradient(int gradient) {
  Gradient& held = gradients_[gradient];
  if (--held.holders == 0) live_ -= held.bytes;
}

}  // namespace zea::detail
