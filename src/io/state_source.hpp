// SPDX-License-Identifier: Apache-2.0
// All that a run needs to go on: the weights, the optimizer's state, where the run stood and its
// deck. A checkpoint's directory is one, and so is a weights file that zea-consolidate --optimizer
// wrote.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "io/manifest.hpp"
#include "io/weights_source.hpp"

namespace zea {

class StateSource : public WeightsSource {
 public:
  virtual const std::string& run_id() const = 0;
  virtual const TrainPosition& position() const = 0;
  /// Resolved TOML of the run.
  virtual const std::string& deck() const = 0;
  /// What there is of parameter `name` beside its value: none unless it was trained.
  virtual std::vector<std::string> states(const std::string& name) const = 0;
  /// Element type of one of them, and its shape: the tensor's, in_blocks() where so many elements
  /// have one of the state.
  virtual TensorInfo state_info(const std::string& name, const std::string& state) const = 0;
  /// As read(), for one of states() or kStateParameter; `shape` is that of the state.
  virtual void read_state(const std::string& name, const std::string& state, const Shape& shape,
                          const Extent& extent, DType dtype, void* target) const = 0;
  /// Reads everything and checks it against its hashes. Throws WeightsError at the first fault.
  virtual void check_all() const = 0;
};

/// Elements of a tensor that have one of this state of it.
inline int64_t elements_of_each(const TensorInfo& tensor, const TensorInfo& state) {
  return state.shape == tensor.shape ? 1 : tensor.shape.back() / state.shape.back();
}

/// `source` as one of these. Throws WeightsError where it holds weights alone.
const StateSource& state_of(const WeightsSource& source);

/// Whether `path` is a weights file that has the state of a run beside its weights.
bool has_state(const std::string& path);

/// Opens a checkpoint's directory, or a weights file that has_state(). Throws WeightsError naming
/// what is wrong.
std::unique_ptr<StateSource> open_state(const std::string& path);

}  // namespace zea
