// SPDX-License-Identifier: Apache-2.0
// Compares the records of a layout's steps with those of a reference, within bounds that follow
// from the deck's precision, and finds the first value that differs.
//
// Error model. A unit makes the relative error u = r + s sqrt(k): r is the unit roundoff of the
// least precise type in which the model computes or communicates (bf16 2^-8, fp32 2^-24), s that of
// the sums inside it (fp32 2^-24), and k = 4 x hidden their number of terms. Errors of units are
// independent, so the error of a row after d units is about u sqrt(d): d counts the units of the
// longest path from the inputs, and for gradients also those of the way back. A row is compared
// relative to its own norm or to the root mean square of its unit's rows, whichever is larger; a
// parameter's gradient relative to its own norm or to that of an average parameter of its size in
// its unit, since a gradient that is zero up to rounding (of a key's bias) has the errors of its
// unit. The bound is kErrors u sqrt(d); test_step_records measures errors against fp64 in units of
// it. From the second step on the relative difference of the weights after the earlier updates is
// added to u. In fp64 the bounds are kExactBound.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "comm/collectives.hpp"
#include "train/step_records.hpp"

namespace zea {

inline constexpr double kExactBound = 1e-10;
inline constexpr double kErrors = 12;

/// The values that are compared.
enum class Compared { Outputs, Losses, OutputGradients, ParameterGradients, Updates };
inline constexpr int kComparedKinds = 5;
const char* compared_name(Compared kind);

/// A relative difference, and what it may be.
struct BoundedDifference {
  double difference = 0, bound = 0;

  bool is_beyond() const { return !(difference <= bound); }
  /// Share of the bound, by which differences are ordered.
  double share() const { return bound > 0 ? difference / bound : difference > 0 ? 1e300 : 0; }
};

/// The largest difference of a unit's values of one kind.
struct ComparedUnit {
  std::string unit;
  Compared kind = Compared::Outputs;
  int64_t count = 0, beyond = 0;  ///< rows or parameters, and how many are beyond their bounds
  BoundedDifference largest = {};
  int64_t step = 0;  ///< where it was found, counted from 1
};

/// A value that differs.
struct FoundDifference {
  Compared kind = Compared::Outputs;
  int64_t step = 0;  ///< counts from 1
  std::string unit = {};
  std::string parameter = {};   ///< its name, where a parameter's values differ
  std::vector<int> ranks = {};  ///< of the layout that have a different value, ascending
  int microbatch = -1;          ///< of the first of these ranks; -1: none
  RowName row = {};             ///< a row of it
  BoundedDifference found = {};
  std::string note = {};  ///< what else is known, as a sentence
};

struct LayoutComparison {
  std::vector<ComparedUnit> units;  ///< in the order of the model
  std::optional<FoundDifference> first;
  std::vector<std::string> notes;  ///< on what is not compared
};

/// Compares the steps of the layout `plan` with those of the reference, of which this rank may have
/// none. Collective over `control`; the result is there on rank 0 and empty on others.
LayoutComparison compare_records(Collectives& control, const Plan& plan,
                                 const std::vector<StepRecord>& layout,
                                 const std::vector<StepRecord>& reference);

/// Returns the table of a comparison, and a sentence on the value that differs first.
std::string describe(const LayoutComparison& comparison);
std::string describe(const FoundDifference& first);
/// Returns a comparison as JSON, after the members of `json`.
std::string json_of(const LayoutComparison& comparison, nlohmann::ordered_json json);

}  // namespace zea
