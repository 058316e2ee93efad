// SPDX-License-Identifier: Apache-2.0
// Records the operations of a unit's forward and checks that they read each of its parameters.
#pragma once

#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "core/error.hpp"
#include "spec/model_spec.hpp"

namespace zea {

class GraphRecorder {
 public:
  /// A handle of a value. When the last handle is gone, the graph drops the value's tensor, too.
  using Value = std::shared_ptr<const int>;

  explicit GraphRecorder(const UnitSpec& unit) : unit_(unit) {}

  bool has(const std::string& role) const { return unit_.has(role); }
  /// Returns the indices of parameters that the unit must have.
  std::vector<int> roles(const std::vector<std::string>& names) {
    std::vector<int> found;
    for (const std::string& name : names) {
      found.push_back(optional(name));
      if (found.back() < 0)
        throw InternalError(unit_.name + " reads a parameter \"" + name +
                            "\" that it does not have");
    }
    return found;
  }
  int optional(const std::string& role) {
    used_.insert(role);
    return unit_.index_of(role);
  }

  Value record(Operation operation, const std::vector<Value>& inputs = {}) {
    operation.dropped = std::exchange(dropped_, {});
    for (const Value& input : inputs) operation.inputs.push_back(input ? *input : -1);
    Value output = value();
    operation.output = *output;
    graph_.operations.push_back(std::move(operation));
    return output;
  }
  /// Adds an output to the latest operation.
  Value record_other() {
    Value other = value();
    graph_.operations.back().others.push_back(*other);
    return other;
  }

  UnitGraph finish(const Value& output) {
    for (const std::string& role : unit_.roles)
      if (!used_.contains(role))
        throw InternalError(unit_.name + " has a parameter \"" + role + "\" that it does not read");
    graph_.output = *output;
    return graph_;
  }

 private:
  Value value() {
    return {new int(graph_.values++), [this](const int* number) {
              dropped_.push_back(*number);
              delete number;
            }};
  }

  const UnitSpec& unit_;
  UnitGraph graph_;
  std::vector<int> dropped_;
  std::set<std::string> used_;
};

}  // namespace zea
