// SPDX-License-Identifier: Apache-2.0
// The traffic of a step: the bytes that a rank sends in every group of ranks, by the textbook
// volume of each collective (collective_volume.hpp). A mesh counts the same at run time under the
// same names; tests compare the two to the byte.
//
// A pair of linears (columns, then rows) sends rows of width h among tp ranks. Under sequence
// parallelism each direction gathers and scatters once, and backward gathers the column linear's
// input once more, since only this rank's rows are saved; otherwise each direction has one
// all-reduce.
#pragma once

#include "deck/hardware.hpp"
#include "estimate/step_samples.hpp"
#include "layout/collective_volume.hpp"
#include "layout/microbatch_rows.hpp"
#include "layout/rank_order.hpp"
#include "schedule/plan.hpp"

namespace zea {

/// A call of a collective, or messages to one other rank: the bytes that this rank sends there.
struct SentCall {
  std::string group = {};  ///< the name of the group of ranks
  CollectiveKind kind = CollectiveKind::AllGather;
  int64_t bytes = 0;
  int messages = 1;    ///< one after the other, each with its latency
  int operation = -1;  ///< of its unit's graph
  detail::SentIn sent_in = detail::SentIn::Forward;
  int chunks = 1;  ///< of rows, each sent by a call of its own
};

/// The calls of one action of `world_rank`; of a unit's forward or backward in one microbatch; and
/// those between the last action and the optimizer. Only calls that send anything.
std::vector<SentCall> calls_of_action(const Plan& plan, const std::vector<MicrobatchRows>& rows,
                                      int world_rank, const Action& action);
std::vector<SentCall> calls_of_unit(const Plan& plan, int unit, const ModuleRows& rows,
                                    int world_rank, bool backward);
std::vector<SentCall> calls_before_optimizer(const Plan& plan, int world_rank,
                                             const std::vector<bool>& has_gradient);

/// Bytes that `world_rank` sends in `step`, only in forward if the run does not train; `rows`: of
/// each of its microbatches.
Traffic traffic_of_step(const Plan& plan, const StepPlan& step,
                        const std::vector<MicrobatchRows>& rows, int world_rank);

/// Bytes that `world_rank` sends in all steps of `samples` together.
Traffic traffic_of_samples(const Plan& plan, const StepSamples& samples, int world_rank);

/// The bytes that all ranks together send to other nodes in a step, the mean over `samples`, by
/// group of ranks. Traffic of a rank in a group counts in proportion to its peers on other nodes.
/// It is that of the first replica, as if all had its samples.
Traffic traffic_between_nodes(const Plan& plan, const RankOrder& order, const StepSamples& samples);

namespace detail {

/// Returns whether a rank works on the same tokens of every module as an earlier rank: both are in
/// one tp group in all modules.
bool is_repeated(const Plan& plan, int world_rank);

}  // namespace detail
}  // namespace zea
