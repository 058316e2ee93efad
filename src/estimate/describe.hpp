// SPDX-License-Identifier: Apache-2.0
// The plan as text, as `zea -n` and the log print it.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "core/text.hpp"
#include "estimate/step_facts.hpp"
#include "estimate/step_time.hpp"
#include "layout/rank_order.hpp"
#include "schedule/plan.hpp"

namespace zea {

/// Describes the ranks, the units (by the names that a stage template uses) with parameters and
/// strategy, the pipeline, and the memory of a rank.
std::string describe(const Plan& plan);

/// Stage groups with their stages, units and costs, the bubble, and a step as a picture. Empty
/// where a replica is one stage group.
std::string describe_pipeline(const Plan& plan);

/// When each pass of the pictured step begins and ends, a line for each stage group.
std::string list_passes(const Plan& plan);

/// The bytes of the keys and values that generation keeps, and the tokens and texts that end a
/// generated text; empty where nothing is generated.
std::string describe_generation(const Plan& plan);

/// Describes the modules of each node, the bytes between nodes in a step of `samples`, and warnings
/// if tp crosses nodes, or ulysses needlessly; empty if all ranks are on one node in their own
/// order.
std::string describe_ranks(const Plan& plan, const RankOrder& order, const StepSamples& samples);

/// Describes the samples, and per step microbatches, FLOPs, memory, and bytes sent. `facts` are
/// those of `samples`.
std::string describe_steps(const Plan& plan, const StepSamples& samples, const StepFacts& facts);

/// Describes FLOPs: the mean of the steps, those of the rank with the most, and how long ranks wait
/// for it; with run.peak_tflops also the seconds of a step at an MFU of 40 %. Empty if nothing
/// trains.
std::string describe_flops(const Plan& plan, const StepSamples& samples, const StepFacts& facts);

/// Describes each sharded module of a pipeline: how it is gathered and why, with memory and bytes
/// sent in a step of `samples`, and those of the other way. Empty without a pipeline.
std::string describe_gathering(const Plan& plan, const StepSamples& samples);

/// Describes precision.<name>.reduce_dtype of each module that sets it; empty if no gradient is
/// summed between ranks, or all of them exactly. The saving is that of the rank that sends most in
/// steps of `samples`, whose facts are `facts`.
std::string describe_reductions(const Plan& plan, const StepSamples& samples,
                                const StepFacts& facts);

/// Describes the seconds of a step on `hardware`: its parts for each stage group, and the slowest
/// rank with the reason. `time` is that of `samples`.
std::string describe_time(const Plan& plan, const StepSamples& samples, const StepTime& time,
                          const Hardware& hardware);

struct ComparedLayout {
  std::string name;                     ///< the deck, or what it changes
  std::optional<StepFacts> facts = {};  ///< none where the layout was refused
  std::string refusal = {};
  int world_size = 0, replicas = 0;
  int64_t full_bytes = 0;             ///< with_graphs() of a rank in a step of full rows, at most
  std::optional<StepTime> time = {};  ///< where there is a hardware file
};

/// A column for each layout that was not refused. `heading` names the samples of all of them.
std::string compare_layouts(const std::string& heading, const std::vector<ComparedLayout>& layouts);

namespace detail {

/// "1.25 MiB".
inline std::string mebibytes(int64_t bytes) {
  return formatted("%.2f MiB", static_cast<double>(bytes) / (1 << 20));
}

/// The largest number of ranks, or nodes, that are listed; of more, only one is drawn.
inline constexpr int kMostListed = 16;

/// A line for each module, and stage of it, that is on `ranks`, which are of one replica and
/// ascending: "  llm.pp0  [0-7] [8-15]". Long lines and many stages are cut short.
std::string draw_ranks(const MeshShape& shape, const std::vector<int>& ranks);

/// "3", "3-6", "0-2 11-13".
std::string runs_text(const std::vector<int>& ranks);

}  // namespace detail
}  // namespace zea
