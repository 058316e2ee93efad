// SPDX-License-Identifier: Apache-2.0
// Functors of routers: the experts that a token chooses by its scores, their gates, and the
// gradient of these. One row of outputs is one token's.
#pragma once

#include <limits>

#include "kernels/lanes.hpp"

namespace zea::detail {

/// The formula of gates, as RouteOptions.
template <class W>
struct RouteFormula {
  int64_t experts, count;  ///< count: those of a token
  bool are_sigmoids, renormalizes;
  W min_sum, factor;
  int64_t groups, topk_groups;  ///< at most kMostGroups
};

/// Groups of experts are bits of a word.
constexpr int64_t kMostGroups = 64;

/// The scores of a row: a softmax over all experts, or a sigmoid of each output.
template <class W>
struct RowScores {
  bool are_sigmoids;
  W most = 0, sum = 1;  ///< of a softmax: the largest output, the sum of exponentials

  template <class Lanes, class T>
  ZEA_FUNCTION static RowScores of(const Lanes& lanes, const T* outputs,
                                   const RouteFormula<W>& formula) {
    if (formula.are_sigmoids) return {true};
    const int64_t experts = formula.experts;
    const W most = lanes.largest(
        experts, -std::numeric_limits<W>::infinity(),
        [](W output) ZEA_INLINE_LAMBDA { return output; }, outputs);
    const auto term = [=](W output) ZEA_INLINE_LAMBDA { return exponential(output - most); };
    return {false, most, lanes.template sum<W>(experts, term, outputs)};
  }
  ZEA_FUNCTION W at(W output) const {
    return are_sigmoids ? sigmoid(output) : exponential(output - most) / sum;
  }
};

/// Returns the place of the first element whose rank is `best`, by ranks of places and elements.
template <class W, class T, class Lanes, class Ranks>
ZEA_FUNCTION int64_t place_of(const Lanes& lanes, int64_t count, const T* elements, W best,
                              const Ranks& rank_of) {
  // Indices are exact in fp32.
  const auto all = static_cast<W>(count);
  const auto index_of = [=](int64_t place, W element) ZEA_INLINE_LAMBDA {
    return rank_of(place, element) == best ? all - static_cast<W>(place) : W(0);
  };
  return static_cast<int64_t>(all - lanes.largest(count, W(1), OfPlace{index_of}, elements));
}

/// Returns a bit for each of the best groups: those whose two best experts have the largest sums;
/// ties go to the lower index.
template <class W, class T, class Lanes, class Ranks>
ZEA_FUNCTION uint64_t best_groups(const Lanes& lanes, const T* outputs,
                                  const RouteFormula<W>& formula, const Ranks& rank_of) {
  constexpr W kNone = -std::numeric_limits<W>::infinity();
  const int64_t size = formula.experts / formula.groups;
  W sums[kMostGroups];
  for (int64_t g = 0; g < formula.groups; ++g) {
    const T* own = outputs + g * size;
    const auto rank_here = [=](int64_t place, W output)
                               ZEA_INLINE_LAMBDA { return rank_of(g * size + place, output); };
    const W first = lanes.largest(size, kNone, OfPlace{rank_here}, own);
    const int64_t taken = place_of(lanes, size, own, first, rank_here);
    const auto others = [=](int64_t place, W output) ZEA_INLINE_LAMBDA {
      return place == taken ? kNone : rank_here(place, output);
    };
    sums[g] = first + lanes.largest(size, kNone, OfPlace{others}, own);
  }
  uint64_t best = 0;
  for (int64_t n = 0; n < formula.topk_groups; ++n) {
    int64_t next = -1;
    for (int64_t g = 0; g < formula.groups; ++g)
      if ((best >> g & 1) == 0 && (next < 0 || sums[g] > sums[next])) next = g;
    best |= uint64_t{1} << next;
  }
  return best;
}

/// The best experts of a token and their gates: their scores, perhaps divided by the sum of these.
/// Experts are found one by one, best first; ties go to the lower index.
template <class T>
struct RouteRow {
  const T* x;
  const Wide<T>* bias;  ///< added to scores for the choice alone; may be null
  Wide<T>* gates;
  int64_t* chosen;
  RouteFormula<Wide<T>> formula;

  template <class Lanes>
  ZEA_FUNCTION void operator()(const Lanes& lanes, int64_t row) const {
    using W = Wide<T>;
    constexpr W kNone = -std::numeric_limits<W>::infinity();
    const int64_t experts = formula.experts, first = row * formula.count;
    const T* outputs = x + row * experts;
    const W* added = bias;
    const auto scores = RowScores<W>::of(lanes, outputs, formula);
    const auto rank_of = [=](int64_t expert, W output) ZEA_INLINE_LAMBDA {
      const W score = scores.at(output) + (added ? added[expert] : W(0));
      // So that experts are distinct where scores are NaN.
      return score == score ? score : std::numeric_limits<W>::lowest();
    };
    const int64_t of_group = experts / formula.groups;
    const bool is_grouped = formula.groups > 1;
    const uint64_t groups =
        is_grouped ? best_groups(lanes, outputs, formula, rank_of) : uint64_t{1};
    W last = -kNone, total = formula.min_sum;
    int64_t last_expert = -1;
    for (int64_t c = first; c < first + formula.count; ++c) {
      const auto following = [=](int64_t expert, W output) ZEA_INLINE_LAMBDA {
        const W rank = rank_of(expert, output);
        const bool follows = rank < last || (rank == last && expert > last_expert);
        if (!follows || (is_grouped && (groups >> (expert / of_group) & 1) == 0)) return kNone;
        return rank;
      };
      last = lanes.largest(experts, kNone, OfPlace{following}, outputs);
      last_expert = place_of(lanes, experts, outputs, last, following);
      const W gate = scores.at(load(outputs[last_expert]));
      total += gate;
      if (lanes.is_first()) chosen[c] = last_expert, gates[c] = gate;
    }
    const W scale = formula.renormalizes ? formula.factor / total : formula.factor;
    if (lanes.is_first())
      for (int64_t c = first; c < first + formula.count; ++c) gates[c] *= scale;
  }
};

/// The gradient of a row of outputs, given those of gates.
template <class T>
struct RouteRowBackward {
  const T* x;
  const Wide<T>* dgates;
  const int64_t* chosen;
  T* dx;
  RouteFormula<Wide<T>> formula;

  template <class Lanes>
  ZEA_FUNCTION void operator()(const Lanes& lanes, int64_t row) const {
    using W = Wide<T>;
    const int64_t experts = formula.experts, choices = formula.count;
    const T* outputs = x + row * experts;
    const int64_t* own = chosen + row * choices;
    const W* d = dgates + row * choices;
    const auto scores = RowScores<W>::of(lanes, outputs, formula);
    W total = formula.min_sum, dot = 0;
    for (int64_t c = 0; c < choices; ++c) {
      const W score = scores.at(load(outputs[own[c]]));
      total += score;
      dot += d[c] * score;
    }
    const W shift = formula.renormalizes ? dot / total : 0;
    const W scale = formula.renormalizes ? formula.factor / total : formula.factor;
    // The gradient of a chosen score, times its slope: of a softmax without the common term.
    const auto term_of = [=](int64_t c, W score) ZEA_INLINE_LAMBDA {
      return (d[c] - shift) * scale * score * (scores.are_sigmoids ? 1 - score : W(1));
    };
    W sum = 0;
    for (int64_t c = 0; c < choices; ++c) sum += term_of(c, scores.at(load(outputs[own[c]])));
    const W common = scores.are_sigmoids ? W(0) : sum;
    const auto gradient = [=](int64_t expert, W output) ZEA_INLINE_LAMBDA {
      const W score = scores.at(output);
      W value = -score * common;
      for (int64_t c = 0; c < choices; ++c)
        if (own[c] == expert) value += term_of(c, score);
      return value;
    };
    lanes.each(experts, StoreTo<T>{dx + row * experts}, OfPlace{gradient}, outputs);
  }
};

/// Where copies of tokens go that are sorted by expert: the place of each copy, and the end of each
/// expert's places. Copies of `experts` and later ones, which are of other ranks, go nowhere.
template <class I>
struct PlaceCopies {
  const I *sorted, *copies;  ///< experts, and the copies that have chosen them
  I* places;                 ///< of each copy; -1: nowhere
  int32_t* ends;             ///< of each of `experts`
  int64_t count, experts;

  template <class Lanes>
  ZEA_FUNCTION void operator()(const Lanes& lanes, int64_t item) const {
    const Chunk chunk(item, count);
    const I* all = sorted;
    const int64_t begin = chunk.begin, last = count - 1, known = experts;
    I* targets = places;
    int32_t* limits = ends;
    const auto both = [](I expert, I copy) ZEA_INLINE_LAMBDA { return Values<I, 2>{expert, copy}; };
    const auto place = [=](int64_t i, const Values<I, 2>& of) ZEA_INLINE_LAMBDA {
      const int64_t position = begin + i, expert = of.of[0];
      const int64_t following = position < last ? all[position + 1] : known;
      for (int64_t e = position == 0 ? 0 : expert; e < following && e < known; ++e)
        limits[e] = static_cast<int32_t>(e < expert ? 0 : position + 1);
      targets[of.of[1]] = expert < known ? position : -1;
    };
    lanes.each(chunk.count, place, both, all + begin, copies + begin);
  }
};

/// Adds the rows of experts that have tokens: of others the library leaves anything in `made`.
template <class T>
struct AddActiveRows {
  const Bf16* made;
  T* target;
  const int32_t* ends;  ///< of each expert's tokens
  int64_t rows, width;  ///< of an expert

  template <class Lanes>
  ZEA_FUNCTION void operator()(const Lanes& lanes, int64_t row) const {
    const int64_t expert = row / rows;
    if (ends[expert] == (expert > 0 ? ends[expert - 1] : 0)) return;
    const auto sum = [](Wide<T> old, float more) ZEA_INLINE_LAMBDA { return old + more; };
    T* own = target + row * width;
    lanes.each(width, StoreTo<T>{own}, sum, own, made + row * width);
  }
};

}  // namespace zea::detail
