// SPDX-License-Identifier: Apache-2.0
// The score options of a call of attention, kept from its forward to its backward.
#pragma once

#include <torch/csrc/autograd/custom_function.h>

#include "core/attention_slice.hpp"

namespace zea::detail {

inline void save_scores(torch::autograd::AutogradContext* ctx, const ScoreSpec& scores) {
  ctx->saved_data["scale"] = scores.scale;
  ctx->saved_data["softcap"] = scores.softcap;
}

inline ScoreSpec saved_scores(torch::autograd::AutogradContext* ctx) {
  return {ctx->saved_data.at("scale").toDouble(), ctx->saved_data.at("softcap").toDouble()};
}

}  // namespace zea::detail
