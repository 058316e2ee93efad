// SPDX-License-Identifier: Apache-2.0
// Activations between the layouts of two modules, by an exchange that was planned.
#pragma once

#include <ATen/ATen.h>

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

/// What was received, each row in the place among the `rows` needed that it has in `received_rows`.
at::Tensor placed_rows(const at::Tensor& received, const at::Tensor& received_rows, int64_t rows);

/// held (rows held, width), undefined where this rank holds none -> (rows needed, width).
/// Collective.
at::Tensor exchange_rows(Collectives& ranks, const at::Tensor& held, const RowTransfer& transfer,
                         const RowFormat& format);

}  // namespace zea
