// SPDX-License-Identifier: Apache-2.0
// What iterations that multiply by vectors or tiles work on: they take no parts of these.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/zeros.h>

#include "tile_product.hpp"

namespace zea::detail {

/// A matrix in whole steps of rows and columns: itself where it has whole ones, else a copy with
/// zeros beyond.
struct PaddedMatrix {
  PaddedMatrix(const at::Tensor& matrix, int64_t step) : all(matrix), part(matrix) {
    const int64_t rows = matrix.size(0), columns = matrix.size(1);
    if (rows % step == 0 && columns % step == 0) return;
    all = at::zeros({round_to(rows, step), round_to(columns, step)}, matrix.options());
    part = all.narrow(0, 0, rows).narrow(1, 0, columns);
    part.copy_(matrix);
  }

  at::Tensor all;
  at::Tensor part;  ///< without what is beyond
};

}  // namespace zea::detail
