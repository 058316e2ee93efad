// SPDX-License-Identifier: Apache-2.0
// Collects the units and parameters of a model in walking order. Private to the families of plan/.
#pragma once

#include <string>
#include <vector>

#include "zea/plan/model/model_spec.hpp"

namespace zea::detail {

/// Cut by outputs (dim 0), by inputs (dim 1), and a vocabulary.
inline TpCut cut_outputs(int64_t blocks) {
  return {.dim = 0, .blocks = blocks};
}
inline TpCut cut_inputs(int64_t blocks) {
  return {.dim = 1, .blocks = blocks};
}
inline TpCut cut_vocabulary() {
  return {.dim = 0, .pads = true};
}

class SpecBuilder {
 public:
  explicit SpecBuilder(ModelSpec& model) : model_(model) {}

  /// Starts a unit; what is added from now on is its.
  void start(const std::string& name, const std::string& module, UnitKind kind,
             std::vector<UnitInput> inputs);
  int last_unit() const { return static_cast<int>(model_.units.size()) - 1; }

  /// Returns the parameter's index. Vectors start as zeros, the rest as normal numbers of `std`.
  int add(const std::string& name, Shape shape, bool trainable, double std, const TpCut& cut = {},
          bool fused_with_next = false);
  void add_norm(const std::string& name, int64_t width, bool trainable, bool bias);
  /// A vector of normal numbers.
  void add_class_token(const std::string& name, int64_t width, bool trainable, double std);
  /// A table of sines and cosines, which is never trained.
  void add_sinusoids(const std::string& name, int64_t positions, int64_t width);
  /// The unit reads a parameter that an earlier one has, too.
  void use(int param) { model_.units.back().params.push_back(param); }

 private:
  ModelSpec& model_;
};

}  // namespace zea::detail
