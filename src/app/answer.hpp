// SPDX-License-Identifier: Apache-2.0
// Answers on one process, without MPI: help, build, measured costs, plans.
#pragma once

#include "core/error.hpp"
#include "estimate/step_samples.hpp"
#include "library/start.hpp"
#include "train/training_data.hpp"

namespace zea {

/// -h, -c, --version, --profile and -n: text on the terminal.
ExitCode answer(const CommandLine& line);

/// Notes on opened data sets, null ones passed over: tokens that differ from the
/// model's, data that differs from that of the resumed run. Throws DataError where a run must not
/// go on. Collective over the ranks of `opening`; rank 0 gets the notes.
std::vector<std::string> notes_on_data(const Start& start, const Dataset* train,
                                       const Dataset* eval, const SharedOpening& opening = {});

/// The samples by which a run that starts so is planned: of the data set that it reads in its mode,
/// made-up ones where that is null.
StepSamples first_samples(const Start& start, const Plan& plan, const Dataset* train,
                          const Dataset* eval);

}  // namespace zea
