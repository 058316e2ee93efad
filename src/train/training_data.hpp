// SPDX-License-Identifier: Apache-2.0
// The data sets of a run, opened and checked against the model and the deck before the first
// step, and the samples that its steps draw. Checks read the index, and loss masks where learned
// positions limit what can be generated.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "comm/collectives.hpp"
#include "core/action_record.hpp"
#include "data/dataset.hpp"
#include "data/loader.hpp"
#include "data/sampler.hpp"
#include "estimate/step_samples.hpp"
#include "io/manifest.hpp"
#include "schedule/plan.hpp"
#include "zea/weights.hpp"

namespace zea {

/// Returns how whole microbatches are loaded for the plan's model, with data.decoding_threads
/// or, if these are 0, with one thread.
LoaderOptions loading_of(const Plan& plan);
/// Returns the threads of data.decoding_threads = 0 for a rank with so many cores.
int threads_on(double cores_per_rank, const Options& options);
/// Returns which of an encoder's items a rank loads: all whose tokens it holds, or none.
ItemsTaken taken_on(const Plan& plan, int world_rank, int encoder, bool takes_any);
/// Returns loading_of() for one rank, which loads the items that the first stages of encoders
/// have there. The plan must outlive it.
LoaderOptions loading_on(const Plan& plan, int world_rank);

/// Opens together with the other ranks of `control`; moves `record` on. Both outlive it.
SharedOpening shared_by(Collectives& control, ActionRecord& record);

/// Opens and checks a data set; returns null if `path` is empty. Throws DataError, on all
/// ranks, naming the sample that does not fit the model or a row. Collective over the ranks of
/// `opening`, as are the next functions; by default one process opens it alone, as for a plan.
std::unique_ptr<Dataset> open_checked(const std::string& path, const Plan& plan,
                                      const SharedOpening& opening = {});

/// Opens and checks all sources as one data set; null where there are none.
std::unique_ptr<Dataset> open_checked(const DataSources& sources, const Plan& plan,
                                      const SharedOpening& opening = {});

/// Opens and checks data.eval, whose prompts must also leave the model room for
/// eval.generate_tokens.
std::unique_ptr<Dataset> open_checked_eval(const Plan& plan, const SharedOpening& opening = {});

/// Returns notes on data sets (null ones are passed over) on rank 0. Throws DataError, on all
/// ranks, where a sample holds a token that the tokenizer of `model` has as another.
std::vector<std::string> notes_of(const std::vector<const Dataset*>& datasets,
                                  const WeightsSource& model, const SharedOpening& opening = {});

/// Describes how the training data differs from that of the run that resumes at `resumed`;
/// empty: it does not, or its checkpoint does not say. Throws DataError instead, unless
/// data.allow_changed.
std::string compare_data(const Dataset& train, const TrainPosition& resumed,
                         const DataOptions& options);

/// Returns the sampler of a run that trains on `dataset`.
Sampler make_sampler(const Options& options, const Dataset& dataset);

/// Returns the samples of a few steps from `first_step` on, or, where nothing trains, of the first
/// batches; fewer steps where these have many samples. `dataset`, which `key` of the deck names,
/// must outlive them; their contents are read when they are used.
StepSamples draw_samples(const Plan& plan, const Dataset& dataset, const std::string& key,
                         int64_t first_step = 0);

}  // namespace zea
