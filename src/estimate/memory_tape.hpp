// SPDX-License-Identifier: Apache-2.0
// Autograd's memory, estimated: a unit calls functions that declare their bytes, and the tape
// counts what lives when. Tensors live while a local variable or the graph holds them; gradients
// are added in place where nobody else holds them, as libtorch's engine does.
#pragma once

#include <cstdint>
#include <vector>

#include "estimate/unit_memory.hpp"

namespace zea::detail {

/// What one differentiable function declares. Peaks are the most that is held at once; one that is
/// left at 0 is no more than what stays afterwards.
struct FunctionMemory {
  int64_t output = 0;
  int64_t saved = 0;             ///< tensors of its own that the graph keeps
  bool saves_input = false;      ///< the graph keeps its first input
  bool saves_output = false;     ///< the graph keeps its output
  bool trains = false;           ///< one of its parameters trains
  bool passes_gradient = false;  ///< gradients of inputs of its size are its output's, not copied
  bool changes_input = false;    ///< the output is the first input, whose gradient is the output's
  int64_t forward_peak = 0;      ///< beyond its inputs; output and saved included
  int64_t backward_working = 0;  ///< temporaries beyond what was saved and all gradients of tensors
  int64_t gradient_working = 0;  ///< the same, only while its inputs' gradients are made
};

class MemoryTape {
 public:
  explicit MemoryTape(bool keeps_graph) : keeps_graph_(keeps_graph) {}

  /// A tensor that the caller holds throughout: nothing is counted.
  int input(int64_t bytes, bool needs_gradient);
  /// Runs a function; its output is a local variable of the unit until drop or finish.
  int call(const FunctionMemory& function, const std::vector<int>& inputs);
  /// The unit holds `tensor` no longer; of inputs, and of what is gone, nothing.
  void drop(int tensor);
  int64_t bytes(int tensor) const { return tensors_[tensor].bytes; }
  bool needs_gradient(int tensor) const { return tensors_[tensor].needs_gradient; }

  /// The unit returns `output`; goes through the backward.
  UnitMemory finish(int output);

 private:
  struct Tensor {
    int64_t bytes = 0;
    bool needs_gradient = false;
    bool is_input = false;
    bool is_changed = false;  ///< it is another now, which counts its bytes
    int holders = 0;          ///< local variable, graph
    int gradient = -1;        ///< index in gradients_
  };
  struct Gradient {
    int64_t bytes = 0;
    int holders = 0;
  };
  struct Node {
    FunctionMemory function;
    std::vector<int> inputs;
    int output;
  };

  void take(int64_t bytes);
  void touch(int64_t bytes);
  void let_go(int tensor);
  int new_gradient(int64_t bytes);
  void let_go_gradient(int gradient);
  void add_gradient(int tensor, int gradient);
  void run_backward(const Node& node);

  bool keeps_graph_;
  std::vector<Tensor> tensors_;
  std::vector<Gradient> gradients_;
  std::vector<Node> nodes_;
  std::vector<int> locals_;
  int64_t live_ = 0, peak_ = 0;
};

}  // namespace zea::detail
