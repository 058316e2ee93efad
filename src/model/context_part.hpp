// SPDX-License-Identifier: Apache-2.0
// A rank's part of attention over tokens that are dealt to cp ranks, with what devices want of it,
// kept from layer to layer.
#pragma once

#include <utility>
#include <vector>

#include "layout/context_plan.hpp"
#include "model/index_tensor.hpp"
#include "model/slice_list.hpp"

namespace zea {

struct ContextPart {
  explicit ContextPart(ContextPlan of_rank)
      : plan(std::move(of_rank)),
        slices(plan.slices.begin(), plan.slices.end()),
        inner_order(plan.inner_order) {}

  ContextPlan plan;
  std::vector<SliceList> slices;  ///< each of ContextPlan::slices
  IndexList inner_order;          ///< ContextPlan::inner_order
};

}  // namespace zea
