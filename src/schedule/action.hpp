// SPDX-License-Identifier: Apache-2.0
// Training as a list: what a rank does in a step, one plain struct after the other. Schedules are
// pure functions of the plans that make such lists; the engine is one switch over them. A list can
// be printed and compared.
#pragma once

#include <string>
#include <vector>

#include "layout/flat_layout.hpp"
#include "spec/model_spec.hpp"

namespace zea {

enum class ActionKind {
  Unshard,          ///< start gathering a buffer's parameters
  UnshardSubgroup,  ///< the same, from the smaller group that it was resharded to
  Reshard,          ///< drop them again
  ReshardSubgroup,  ///< drop them, but for what the smaller group keeps until backward
  Forward,          ///< run a unit, keeping what its backward needs
  Backward,         ///< autograd on that unit alone
  BackwardInput,    ///< the same, with the gradients of weights put off
  BackwardWeight,   ///< the gradients that were put off
  Move,             ///< hand a unit's output from the ranks of its module to those of its consumer,
                    ///< where these are the same ranks
  MoveBack,         ///< hand the output's gradient back
  Send,             ///< start to send a unit's output to the place that reads it
  Receive,          ///< start to receive it there
  SendGradient,     ///< start to send that output's gradient back
  ReceiveGradient,  ///< start to receive it
  ReduceShard,      ///< start reducing a buffer's gradient to the owners of its shards, and add it
                    ///< there
  ReduceReplicas,   ///< start summing the owned gradients over replicas of the shards
};

/// `unit` is set for what is done to units and their outputs, `buffer` for the others; -1
/// otherwise.
struct Action {
  ActionKind kind;
  int unit = -1;
  int buffer = -1;
  int microbatch = -1;
  int place = -1;  ///< of the pipeline: the other end of a send or receive

  bool operator==(const Action&) const = default;
};

std::string describe(const Action& action, const ModelSpec& model,
                     const std::vector<FlatBuffer>& buffers);

}  // namespace zea
