// SPDX-License-Identifier: Apache-2.0
// Exchanges rows of activations between ranks: between the layouts of two modules, as planned, or
// between a rank and the other members of a group.
#pragma once

#include <ATen/ATen.h>

#include <vector>

#include "comm/collectives.hpp"
#include "model/microbatch.hpp"

namespace zea {

struct RowFormat {
  int64_t width;
  DType dtype;
  at::Device device;
};

/// Elements of each rank's rows.
Counts elements_of(Counts rows, int64_t width);

/// Returns the `rows` needed: each received row at its index in `received_rows`, summed where rows
/// have the same index.
at::Tensor placed_rows(const at::Tensor& received, const at::Tensor& received_rows, int64_t rows);

/// held (rows held, width), undefined where this rank holds none -> (rows needed, width).
/// Collective.
at::Tensor exchange_rows(Collectives& ranks, const at::Tensor& held, const RowTransfer& transfer,
                         const RowFormat& format);

}  // namespace zea

namespace zea::detail {

/// The rows of `member` in x (rows of all members, ...); `rows`: of each.
at::Tensor rows_of_member(const at::Tensor& x, const Counts& rows, int member);

/// A message for each other member that has rows: its rows of x (rows of all members, ...).
std::vector<Message> rows_of_others(const at::Tensor& x, const Counts& rows,
                                    const Collectives& group);

/// A message for each other member: its part of x (members, ...); none where parts are empty.
std::vector<Message> parts_of_others(const at::Tensor& x, const Collectives& group);

}  // namespace zea::detail
