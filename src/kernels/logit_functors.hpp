// SPDX-License-Identifier: Apache-2.0
// What the logit kernels do with one row of a tile.
#pragma once

#include "kernels/lanes.hpp"

namespace zea::detail {

/// A tile of logits (rows, columns) and the targets of its rows.
template <class T>
struct LogitRows {
  T* logits;
  const int64_t* targets;
  int64_t first, columns;  ///< of the vocabulary

  ZEA_FUNCTION T* row(int64_t index) const { return logits + index * columns; }
  /// The column of a row's target, or -1 where another tile has it.
  ZEA_FUNCTION int64_t place(int64_t row) const {
    const int64_t place = targets[row] - first;
    return place >= 0 && place < columns ? place : -1;
  }
};

/// Adds a row to its log-sum-exp so far.
template <class T>
struct AddLogitRow {
  LogitRows<T> tile;
  Wide<T>*maxima, *sums, *picked;

  template <class Lanes>
  ZEA_FUNCTION void operator()(const Lanes& lanes, int64_t row) const {
    const T* values = tile.row(row);
    const Wide<T> before = maxima[row];
    const auto as_it_is = [](Wide<T> value) ZEA_INLINE_LAMBDA { return value; };
    const Wide<T> maximum = lanes.largest(tile.columns, before, as_it_is, values);
    const auto term = [=](Wide<T> value) ZEA_INLINE_LAMBDA { return exponential(value - maximum); };
    const Wide<T> sum = lanes.template sum<Wide<T>>(tile.columns, term, values);
    if (!lanes.is_first()) return;
    const Wide<T> kept = sums[row] == 0 ? 0 : sums[row] * std::exp(before - maximum);
    sums[row] = kept + sum;
    maxima[row] = maximum;
    if (const int64_t place = tile.place(row); place >= 0) picked[row] = load(values[place]);
  }
};

/// Turns a row into its gradient.
template <class T>
struct LogitRowGradient {
  LogitRows<T> tile;
  const Wide<T>*lses, *scale;

  template <class Lanes>
  ZEA_FUNCTION void operator()(const Lanes& lanes, int64_t row) const {
    T* values = tile.row(row);
    const Wide<T> lse = lses[row], factor = *scale;
    const int64_t place = tile.place(row);
    const Wide<T> own = place < 0 ? 0 : std::exp(load(values[place]) - lse) - 1;
    lanes.sync();  // all lanes have read what one is about to overwrite
    const auto gradient = [=](Wide<T> value)
                              ZEA_INLINE_LAMBDA { return exponential(value - lse) * factor; };
    lanes.each(tile.columns, StoreTo<T>{values}, gradient, values);
    lanes.sync();
    if (place >= 0 && lanes.is_first()) store(values[place], own * factor);
  }
};

}  // namespace zea::detail
