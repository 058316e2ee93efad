// SPDX-License-Identifier: Apache-2.0
// Answers of one process, without MPI: help, build, measured costs, plans.
#pragma once

#include <string>
#include <vector>
#include "core/error.hpp"
#include "estimate/step_samples.hpp"
#include "library/start.hpp"
#include "train/training_data.hpp"

namespace zea {

/// Returns whether the command line only asks for text (-h, -n, -c, --version): that needs no
/// ranks.
bool answers_without_ranks(int argc, const char* const* argv);

/// Prints the answer to -h, -c, --version, --profile or -n.
ExitCode answer(const CommandLine& line);

/// "0.1.0".
std::string version();
std::string version_text();
/// A fact on this program, with its name: "commit", "libtorch", ...
struct BuildFact {
  std::string name, value;
};
/// Returns the commit that this program was built from, how it was built, its libraries, and the
/// instructions that they use here.
std::vector<BuildFact> build_facts();
/// Returns these facts, a line each: for zea -c and for reports of faults.
std::string build_text();

/// Returns, on rank 0, notes on opened data sets (null: none): tokens that differ from the model's,
/// data that differs from that of the resumed run. Throws DataError where a run must not go on.
/// Collective over the ranks of `opening`.
std::vector<std::string> notes_on_data(const Start& start, const Dataset* train,
                                       const Dataset* eval, const SharedOpening& opening = {});

/// Returns the samples that a run with this start is planned by: those of the data set that its
/// mode reads, or made-up ones where that is null.
StepSamples first_samples(const Start& start, const Plan& plan, const Dataset* train,
                          const Dataset* eval);

}  // namespace zea
