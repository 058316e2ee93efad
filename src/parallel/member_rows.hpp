// SPDX-License-Identifier: Apache-2.0
// Rows of a tensor that belong to the members of a group, one member's after the other's, or a part
// for each member: what travels between this member and the others.
#pragma once

#include <ATen/ATen.h>

#include <vector>

#include "comm/collectives.hpp"

namespace zea::detail {

/// The rows of `member` in x (rows of all members, ...); `rows`: of each.
at::Tensor rows_of_member(const at::Tensor& x, const Counts& rows, int member);

/// A message for each other member that has rows: its rows of x (rows of all members, ...).
std::vector<Message> rows_of_others(const at::Tensor& x, const Counts& rows,
                                    const Collectives& group);

/// A message for each other member: its part of x (members, ...); none where parts are empty.
std::vector<Message> parts_of_others(const at::Tensor& x, const Collectives& group);

}  // namespace zea::detail
