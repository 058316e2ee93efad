// SPDX-License-Identifier: Apache-2.0
// The data sets of a run, opened and checked against the model and the deck before the first step:
// from their index, and where learned positions bound what can be generated, from their loss masks.
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
#include "io/weights_source.hpp"
#include "schedule/plan.hpp"

namespace zea {

/// How samples are loaded for the plan's model, whole microbatches, by data.decoding_threads or,
/// where these are 0, by one thread.
LoaderOptions loading_of(const Plan& plan);
/// What data.decoding_threads = 0 stands for where a rank has so many cores.
int threads_on(double cores_per_rank, const Options& options);
/// What a rank takes of an encoder's items: all that it holds tokens of, or nothing.
ItemsTaken taken_on(const Plan& plan, int world_rank, int encoder, bool takes_any);
/// The same on one rank, which takes the items that the first stages of encoders are given there.
/// The plan must outlive it.
LoaderOptions loading_on(const Plan& plan, int world_rank);

/// Together with the other ranks of `control`; moves `record` on. Both must outlive it.
SharedOpening shared_by(Collectives& control, ActionRecord& record);

/// Null where `path` is empty. Throws DataError, on all ranks, naming the sample that the model or
/// a row cannot take. Collective over the ranks of `opening`, as are the next ones; by default one
/// process opens it alone, as a plan does.
std::unique_ptr<Dataset> open_checked(const std::string& path, const Plan& plan,
                                      const SharedOpening& opening = {});

/// All of them as one. Null where there are none.
std::unique_ptr<Dataset> open_checked(const DataSources& sources, const Plan& plan,
                                      const SharedOpening& opening = {});

/// data.eval, whose prompts must also leave the model room for eval.generate_tokens.
std::unique_ptr<Dataset> open_checked_eval(const Plan& plan, const SharedOpening& opening = {});

/// Notes on data sets, on rank 0; null ones are passed over. Throws DataError, on all
/// ranks, where a sample holds a token that is another in the tokenizer of `model`.
std::vector<std::string> notes_of(const std::vector<const Dataset*>& datasets,
                                  const WeightsSource& model, const SharedOpening& opening = {});

/// Tells how the training data differs from that of the run that goes on at `resumed`; empty:
/// nothing, or its checkpoint does not tell. Throws DataError instead, unless data.allow_changed.
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
