// SPDX-License-Identifier: Apache-2.0
// Records of a step that do not depend on the layout: projections of the rows of every unit's
// output and of its gradient, and of every parameter's gradient and update. A projection is a sum
// with pseudo-random signs, so that the differences of a few projections estimate the norm of the
// difference of two vectors (Johnson and Lindenstrauss 1984; Achlioptas 2003).
#pragma once

#include <ATen/ATen.h>

#include <array>
#include <cstdint>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "batch/row_names.hpp"
#include "data/dataset.hpp"
#include "parallel/engine.hpp"

namespace zea {

inline constexpr int kProjections = 4;
using Projections = std::array<double, kProjections>;

/// A row of a unit's output, or of the gradient of it.
struct RowRecord {
  RowName name;
  int32_t microbatch = 0;
  Projections values = {};
};

/// The values of a unit that are compared row by row.
enum class RowsOf { Output, Gradient };

/// A part of a parameter that this rank owns. Ranks that hold copies of a part have the same
/// `param`, `first` and `elements`.
struct PartRecord {
  int64_t param = 0;                ///< index in ModelSpec::params
  int64_t first = 0, elements = 0;  ///< its first element in the whole tensor, and how many it has
  Projections gradient = {}, update = {};
  double gradient_squares = 0, value_squares = 0;  ///< sums of squares, of values before the update
  /// Numbers of elements whose gradient g is not zero, by the logarithm of |g|: bin b has
  /// 4^(b - 31.5) <= |g| < 4^(b - 30.5).
  std::array<double, 64> magnitudes = {};
};

/// Projections of some values, and their sum of squares.
struct ValueSums {
  Projections projections = {};
  double squares = 0;
};

/// A step on one rank.
struct StepRecord {
  std::map<std::pair<int, RowsOf>, std::vector<RowRecord>> rows;  ///< by unit
  std::vector<PartRecord> parts;
  std::set<int> unnamed_units;  ///< with rows of partial sums, or of some heads
  // The numbers of the step, the same on all ranks.
  double loss = 0, grad_norm = 0, lr = 0;
  int64_t targets = 0;
  bool skipped = false;
};

/// Records the steps of an engine. The engine runs the function that observed() returns; nothing
/// else of it changes.
class StepRecorder {
 public:
  /// `plan` is that of the engine; both outlive what this records.
  explicit StepRecorder(const Plan& plan) : plan_(plan) {}
  StepRecorder(const StepRecorder&) = delete;
  StepRecorder& operator=(const StepRecorder&) = delete;

  /// Returns `run`, whose outputs and output gradients are recorded while a step is.
  RunUnit observed(RunUnit run);

  /// Begins the record of a step with these microbatches, which outlive its walk.
  void begin(const std::vector<Microbatch>& microbatches, std::vector<RowNames> names);
  /// Records the reduced gradients, right before the update.
  void record_gradients(Engine& engine);
  /// Records the update and ends the record.
  StepRecord finish(Engine& engine);

 private:
  void record_values(Engine& engine);
  void record_rows(int unit, int microbatch, RowsOf which, const at::Tensor& rows);
  const std::vector<RowName>* names_of(const UnitSpec& unit, int microbatch) const;
  const at::Tensor& signs_of_columns(const at::Tensor& rows);

  const Plan& plan_;
  const std::vector<Microbatch>* microbatches_ = nullptr;  ///< null: no step is recorded
  std::vector<RowNames> names_;
  StepRecord step_;
  std::vector<ValueSums> values_;        ///< of the parts' values before the step
  std::map<int64_t, at::Tensor> signs_;  ///< by width
};

/// Trains the first `steps` steps of the deck on `engine`, whose units `recorder` observes, from
/// the weights that it holds. Collective over `control`, the engine's ranks.
std::vector<StepRecord> record_steps(Engine& engine, StepRecorder& recorder, Collectives& control,
                                     const Dataset& dataset, const LoaderOptions& loading,
                                     int64_t steps);

}  // namespace zea
