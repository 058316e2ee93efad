// SPDX-License-Identifier: Apache-2.0
#include "train/compare_records.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <tuple>
#include <utility>

#include "comm/agree.hpp"

namespace zea {
namespace {

/// Muon's iterations multiply small singular values by at most this much (3.4445^5).
constexpr double kMuonGain = 485;
/// Rounding error of Muon's bf16 iterations, relative to the update; none in fp64 (test_muon's
/// bound).
constexpr double kMuonRounding = 0.1;

double roundoff(DType type) {
  switch (type) {
    case DType::Float64:
      return 0x1p-53;
    case DType::Float16:
      return 0x1p-11;
    case DType::BFloat16:
      return 0x1p-8;
    default:
      return 0x1p-24;
  }
}

/// The bounds of one step.
class Bounds {
 public:
  explicit Bounds(const Plan& plan)
      : plan_(plan), is_exact_(plan.precision.master == DType::Float64) {
    for (const auto& [module, types] : plan.precisions)
      for (const DType type : {types.param, types.reduce, types.output})
        u_ = std::max(u_, roundoff(type));
    int64_t widest = 1;
    for (const std::string& module : plan.model.modules())
      widest = std::max(widest, plan.model.hidden(module));
    const double sums = roundoff(is_exact_ ? DType::Float64 : DType::Float32);
    u_ += sums * std::sqrt(4.0 * static_cast<double>(widest));
    for (const UnitSpec& unit : plan.model.units) {
      double before = 0;
      for (const UnitInput& input : unit.inputs) before = std::max(before, depth_[input.unit]);
      depth_.push_back(before + 1);
      deepest_ = std::max(deepest_, before + 1);
    }
  }

  /// `drift`: the relative difference of the weights before the step.
  void begin_step(double drift) { drift_ = drift; }

  double output(int unit) const { return bound(depth_[unit]); }
  double output_gradient(int unit) const { return bound(2 * deepest_ - depth_[unit]); }
  double loss() const { return bound(deepest_); }
  double norm() const { return bound(2 * deepest_); }
  double gradient(int unit) const { return bound(behind(unit)); }
  /// The same by the error model in every precision.
  double modelled_gradient(int unit) const {
    return kErrors * (u_ + drift_) * std::sqrt(behind(unit));
  }
  /// Copies of a part have the same bits, but for libraries that sum in another order on each rank.
  double copy() const { return 8 * roundoff(plan_.precision.master); }
  bool is_exact() const { return is_exact_; }

 private:
  double behind(int unit) const { return 2 * deepest_ - (unit < 0 ? 0 : depth_[unit]) + 1; }
  double bound(double depth) const {
    return is_exact_ ? kExactBound : kErrors * (u_ + drift_) * std::sqrt(depth);
  }

  const Plan& plan_;
  bool is_exact_;
  double u_ = 0;  ///< the relative error of a unit
  double drift_ = 0, deepest_ = 1;
  std::vector<double> depth_;  ///< of each unit
};

/// Estimates the norm of the vector with these projections, or of the difference of two.
double norm_of(const Projections& a, const Projections& b = {}) {
  double squares = 0;
  for (int i = 0; i < kProjections; ++i) squares += (a[i] - b[i]) * (a[i] - b[i]);
  return std::sqrt(squares / kProjections);
}

BoundedDifference relative(double difference, double scale, double bound) {
  if (scale > 0) return {difference / scale, bound};
  const bool is_equal = difference == 0;
  return {is_equal ? 0 : std::numeric_limits<double>::infinity(), bound};
}

/// Values as bytes, which ranks of one program exchange.
template <class Value>
std::string to_bytes(const std::vector<Value>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(Value)};
}

/// The values of all ranks, on rank 0.
template <class Value>
using OfRanks = std::vector<std::vector<Value>>;

/// Gathers two lists of each rank at once.
template <class Value>
std::pair<OfRanks<Value>, OfRanks<Value>> gather(Collectives& control,
                                                 const std::vector<Value>& first,
                                                 const std::vector<Value>& second) {
  const size_t size = first.size();
  std::string own(reinterpret_cast<const char*>(&size), sizeof size);
  own += to_bytes(first) + to_bytes(second);
  std::pair<OfRanks<Value>, OfRanks<Value>> all;
  for (const std::string& bytes : gather_texts(control, own)) {
    size_t firsts = 0;
    std::memcpy(&firsts, bytes.data(), sizeof firsts);
    std::vector<Value> values((bytes.size() - sizeof firsts) / sizeof(Value));
    std::memcpy(static_cast<void*>(values.data()), bytes.data() + sizeof firsts,
                values.size() * sizeof(Value));
    const auto middle = values.begin() + static_cast<std::ptrdiff_t>(firsts);
    all.first.emplace_back(values.begin(), middle);
    all.second.emplace_back(middle, values.end());
  }
  return all;
}

/// A parameter, assembled from its parts.
struct WholeParam {
  Projections gradient = {}, update = {};
  double gradient_squares = 0, value_squares = 0;
  std::array<double, 64> magnitudes = {};
  std::vector<int> ranks;  ///< that own parts of it
};

struct CopyDifference {
  size_t param;
  int rank, other;  ///< `rank` has another value than `other`
  double gradient, update;
};

struct GatheredParams {
  std::vector<WholeParam> params;
  std::vector<CopyDifference> copies;
};

/// Adds up the parts of all ranks; each part counts on the first rank that has it.
GatheredParams sum_parts(size_t num_params, const OfRanks<PartRecord>& parts) {
  GatheredParams gathered{.params = std::vector<WholeParam>(num_params), .copies = {}};
  std::map<std::tuple<int64_t, int64_t, int64_t>, std::pair<int, PartRecord>> first;
  int rank = 0;
  for (const std::vector<PartRecord>& of_rank : parts) {
    for (const PartRecord& part : of_rank) {
      WholeParam& whole = gathered.params[static_cast<size_t>(part.param)];
      if (whole.ranks.empty() || whole.ranks.back() != rank) whole.ranks.push_back(rank);
      const auto [found, is_new] =
          first.try_emplace({part.param, part.first, part.elements}, rank, part);
      if (!is_new) {
        const auto& [other, copy] = found->second;
        gathered.copies.push_back({static_cast<size_t>(part.param), rank, other,
                                   norm_of(part.gradient, copy.gradient),
                                   norm_of(part.update, copy.update)});
        continue;
      }
      for (int i = 0; i < kProjections; ++i) {
        whole.gradient[i] += part.gradient[i];
        whole.update[i] += part.update[i];
      }
      whole.gradient_squares += part.gradient_squares;
      whole.value_squares += part.value_squares;
      for (size_t b = 0; b < part.magnitudes.size(); ++b) whole.magnitudes[b] += part.magnitudes[b];
    }
    ++rank;
  }
  return gathered;
}

class Comparison {
 public:
  Comparison(Collectives& control, const Plan& plan, const std::vector<StepRecord>& layout,
             const std::vector<StepRecord>& reference)
      : control_(control),
        plan_(plan),
        model_(plan.model),
        layout_(layout),
        reference_(reference),
        is_root_(control.rank() == 0),
        bounds_(plan),
        unit_of_param_(model_.params.size(), -1),
        drift_(model_.params.size()),
        allowed_squares_(model_.params.size()) {
    for (size_t u = model_.units.size(); u-- > 0;)
      for (const int param : model_.units[u].params) unit_of_param_[param] = static_cast<int>(u);
  }

  LayoutComparison run() {
    for (step_ = 1; step_ <= std::ssize(layout_); ++step_) compare_step();
    note_unnamed();
    if (!is_root_) return {};
    for (auto& [key, unit] : units_) result_.units.push_back(unit);
    return std::move(result_);
  }

 private:
  const StepRecord& own() const { return layout_[static_cast<size_t>(step_ - 1)]; }
  bool has_reference() const { return step_ <= std::ssize(reference_); }
  const StepRecord& reference() const {
    static const StepRecord kNone;
    return has_reference() ? reference_[static_cast<size_t>(step_ - 1)] : kNone;
  }

  void compare_step() {
    const int units = static_cast<int>(std::ssize(model_.units));
    for (int u = 0; u < units; ++u) compare_rows(u, RowsOf::Output, bounds_.output(u));
    if (is_root_) compare_numbers();
    if (!reference().skipped) ++update_;
    for (int u = units; u-- > 0;) compare_rows(u, RowsOf::Gradient, bounds_.output_gradient(u));
    compare_params();
  }

  ComparedUnit& line(const std::string& unit, int order, Compared kind) {
    ComparedUnit& line = units_[{order, kind}];
    line.unit = unit;
    line.kind = kind;
    return line;
  }
  ComparedUnit& line_of(int unit, Compared kind) {
    return line(unit < 0 ? "no unit" : model_.units[unit].name, unit, kind);
  }
  void count(ComparedUnit& line, const BoundedDifference& found) const {
    ++line.count;
    line.beyond += found.is_beyond();
    if (line.step > 0 && found.share() <= line.largest.share()) return;
    line.largest = found;
    line.step = step_;
  }
  void note_first(FoundDifference found) {
    if (result_.first) return;
    found.step = step_;
    result_.first = std::move(found);
  }

  void compare_numbers() {
    const StepRecord& one = reference();
    compare_number("targets", 0, static_cast<double>(own().targets),
                   static_cast<double>(one.targets), 0);
    compare_number("skipped steps", 1, own().skipped + 1.0, one.skipped + 1.0, 0);
    compare_number("loss", 2, own().loss, one.loss, bounds_.loss());
  }
  void compare_number(const char* name, int order, double a, double b, double bound) {
    ComparedUnit& of =
        line(name, static_cast<int>(std::ssize(model_.units)) + order, Compared::Losses);
    const BoundedDifference found = relative(std::abs(a - b), std::abs(b), bound);
    count(of, found);
    if (found.is_beyond()) note_first({.kind = Compared::Losses, .unit = name, .found = found});
  }

  void compare_rows(int unit, RowsOf which, double bound) {
    const auto of = [&](const StepRecord& step) {
      const auto found = step.rows.find({unit, which});
      return found == step.rows.end() ? std::vector<RowRecord>() : found->second;
    };
    const auto [got, expected] = gather(control_, of(own()), of(reference()));
    if (!is_root_) return;
    std::vector<RowRecord> rows;
    for (const auto& of_rank : expected) rows.insert(rows.end(), of_rank.begin(), of_rank.end());
    std::ranges::stable_sort(rows, {}, &RowRecord::name);
    const auto same = std::ranges::unique(rows, {}, &RowRecord::name);
    rows.erase(same.begin(), same.end());
    if (rows.empty() && std::ranges::all_of(got, [](const auto& some) { return some.empty(); }))
      return;
    double squares = 0;
    for (const RowRecord& row : rows) squares += std::pow(norm_of(row.values), 2);
    const double mean = rows.empty() ? 0 : std::sqrt(squares / static_cast<double>(rows.size()));

    ComparedUnit& of_unit =
        line_of(unit, which == RowsOf::Output ? Compared::Outputs : Compared::OutputGradients);
    FoundDifference first{.kind = of_unit.kind, .unit = of_unit.unit};
    std::vector<bool> is_seen(rows.size());
    for (int rank = 0; rank < std::ssize(got); ++rank)
      for (const RowRecord& row : got[rank]) {
        const auto at = std::ranges::lower_bound(rows, row.name, {}, &RowRecord::name);
        const bool is_known = at != rows.end() && at->name == row.name;
        if (is_known) is_seen[at - rows.begin()] = true;
        const double scale = is_known ? std::max(mean, norm_of(at->values)) : 0;
        const BoundedDifference found =
            relative(is_known ? norm_of(row.values, at->values) : 1, scale, bound);
        count(of_unit, found);
        if (!found.is_beyond()) continue;
        if (first.ranks.empty() || first.ranks.back() != rank) first.ranks.push_back(rank);
        const bool is_worse = first.ranks.size() == 1 &&
                              (first.microbatch < 0 || (row.microbatch == first.microbatch &&
                                                        found.share() > first.found.share()));
        if (!is_worse) continue;
        first.microbatch = row.microbatch;
        first.row = row.name;
        first.found = found;
        if (!is_known) first.note = "the reference has no such row";
      }
    const auto unseen = std::ranges::find(is_seen, false) - is_seen.begin();
    if (unseen < std::ssize(is_seen)) {
      const BoundedDifference missing{std::numeric_limits<double>::infinity(), bound};
      count(of_unit, missing);
      if (first.ranks.empty()) {
        first.row = rows[static_cast<size_t>(unseen)].name;
        first.microbatch = 0;
        first.found = missing;
        first.note = "no rank of the layout has this row";
      }
    }
    if (first.microbatch >= 0) note_first(std::move(first));
  }

  /// Norms by which the values of a parameter are compared: its own, or that of an average
  /// parameter of its size in its unit.
  std::vector<double> scales_of(const std::vector<double>& squares) const {
    std::vector<double> unit_squares(model_.units.size() + 1), unit_elements(unit_squares.size());
    const auto elements = [&](size_t p) {
      return static_cast<double>(num_elements(model_.params[p].shape));
    };
    for (size_t p = 0; p < squares.size(); ++p) {
      unit_squares[unit_of_param_[p] + 1] += squares[p];
      unit_elements[unit_of_param_[p] + 1] += elements(p);
    }
    std::vector<double> scales;
    for (size_t p = 0; p < squares.size(); ++p) {
      const int unit = unit_of_param_[p] + 1;
      scales.push_back(
          std::sqrt(std::max(squares[p], unit_squares[unit] / unit_elements[unit] * elements(p))));
    }
    return scales;
  }

  void compare_params() {
    const size_t params = model_.params.size();
    const auto [of_layout, of_reference] = gather(control_, own().parts, reference().parts);
    if (!is_root_) return;
    const GatheredParams got = sum_parts(params, of_layout);
    const GatheredParams expected = sum_parts(params, of_reference);
    std::vector<double> gradient_squares, update_squares;
    for (const WholeParam& whole : expected.params) {
      gradient_squares.push_back(whole.gradient_squares);
      update_squares.push_back(std::pow(norm_of(whole.update), 2));
    }
    const std::vector<double> gradient_scales = scales_of(gradient_squares),
                              update_scales = scales_of(update_squares);
    for (size_t p = 0; p < params; ++p) {
      const WholeParam &a = got.params[p], &b = expected.params[p];
      const double bound = bounds_.gradient(unit_of_param_[p]);
      compare_param(p, Compared::ParameterGradients, a.ranks,
                    relative(norm_of(a.gradient, b.gradient), gradient_scales[p], bound));
    }
    compare_copies(got.copies, Compared::ParameterGradients, gradient_scales);
    compare_number("gradient norm", 3, own().grad_norm, reference().grad_norm, bounds_.norm());
    double drift_squares = 0, value_squares = 0;
    for (size_t p = 0; p < params; ++p) {
      const WholeParam &a = got.params[p], &b = expected.params[p];
      const bool frozen = is_frozen(p);
      const double allowed =
          frozen ? 0 : allowed_update(p, b, gradient_scales[p], update_scales[p]);
      const double scale = update_scales[p];
      // The sums themselves round.
      const double least = 0x1p-47 * std::sqrt(b.value_squares);
      const double difference = norm_of(a.update, frozen ? Projections{} : b.update);
      compare_param(
          p, Compared::Updates, a.ranks,
          relative(difference <= least ? 0 : difference, scale, scale > 0 ? allowed / scale : 0),
          frozen ? "it is frozen in this update" : "");
      for (int i = 0; i < kProjections; ++i) drift_[p][i] += a.update[i] - b.update[i];
      drift_squares += std::pow(norm_of(drift_[p]), 2);
      value_squares += b.value_squares;
    }
    compare_copies(got.copies, Compared::Updates, update_scales);
    if (value_squares > 0) bounds_.begin_step(std::sqrt(drift_squares / value_squares));
  }

  void compare_param(size_t p, Compared kind, const std::vector<int>& ranks,
                     const BoundedDifference& found, const char* note = "") {
    ComparedUnit& of_unit = line_of(unit_of_param_[p], kind);
    count(of_unit, found);
    if (found.is_beyond())
      note_first({.kind = kind,
                  .unit = of_unit.unit,
                  .parameter = model_.params[p].name,
                  .ranks = ranks,
                  .found = found,
                  .note = note});
  }

  /// Returns whether this step must leave a parameter as it is, in the layout and in its reference.
  bool is_frozen(size_t p) const {
    const ParamSpec& param = model_.params[p];
    return !param.is_state && (!param.trainable || !plan_.param_rules[p].trains_at(update_));
  }

  void compare_copies(const std::vector<CopyDifference>& copies, Compared kind,
                      const std::vector<double>& scales) {
    for (const CopyDifference& copy : copies) {
      const double difference = kind == Compared::Updates ? copy.update : copy.gradient;
      const BoundedDifference found = relative(difference, scales[copy.param], bounds_.copy());
      if (!found.is_beyond()) continue;
      ComparedUnit& of_unit = line_of(unit_of_param_[copy.param], kind);
      count(of_unit, found);
      note_first({.kind = kind,
                  .unit = of_unit.unit,
                  .parameter = model_.params[copy.param].name,
                  .ranks = {copy.rank},
                  .found = found,
                  .note = "rank " + std::to_string(copy.other) + " has a copy with another value"});
    }
  }

  /// Returns the difference of updates that a difference of gradients explains. Adam divides by the
  /// gradient's size, so an element whose gradient is g moves by the share e / (|g| + eps) of its
  /// step at most 2, where e is the difference that its gradient may have.
  double allowed_update(size_t p, const WholeParam& whole, double gradient_scale,
                        double update_scale) {
    if (model_.params[p].is_state) return 0;
    const ParamRule& rule = plan_.param_rules[p];
    const Options& options = plan_.options;
    const StepRecord& one = reference();
    const double share = bounds_.modelled_gradient(unit_of_param_[p]);
    double squares = std::pow(share * update_scale, 2);
    if (rule.orthogonalizes) {
      const double rounding = bounds_.is_exact() ? 0 : kMuonRounding;
      squares += std::pow(std::min(1.0, kMuonGain * share + rounding) * update_scale, 2);
    } else if (options.optim.kind != OptimizerKind::Sgd) {
      const double clip = options.optim.clip_norm;
      const double factor = clip > 0 ? std::min(1.0, clip / (one.grad_norm + 1e-6)) : 1;
      const double eps = options.optim.eps * static_cast<double>(one.targets) / factor;
      const double elements = static_cast<double>(num_elements(model_.params[p].shape));
      const double error = share * gradient_scale / std::sqrt(elements);
      const double lr = one.lr * rule.lr_factor_at(update_);
      for (size_t b = 0; b < whole.magnitudes.size(); ++b) {
        const double least = std::pow(4.0, static_cast<double>(b) - 31.5);
        squares += whole.magnitudes[b] * std::pow(lr * std::min(2.0, 2 * error / (least + eps)), 2);
      }
    }
    allowed_squares_[p] += squares;  // moments carry earlier differences on
    const double rounding = 4 * roundoff(plan_.precision.master) * std::sqrt(whole.value_squares);
    const double least = bounds_.is_exact() ? kExactBound * update_scale : 0;
    return std::max(least, 2 * std::sqrt(allowed_squares_[p]) + rounding);
  }

  void note_unnamed() {
    std::vector<int> own;
    for (const StepRecord& step : layout_)
      own.insert(own.end(), step.unnamed_units.begin(), step.unnamed_units.end());
    std::set<int> all;
    for (const std::vector<int>& of_rank : gather(control_, own, {}).first)
      all.insert(of_rank.begin(), of_rank.end());
    for (const int unit : all)
      result_.notes.push_back(
          "rows of " + model_.units[unit].name + " are not compared: ranks make parts of " +
          (model_.units[unit].kind == UnitKind::Keys
               ? "keys and values; the outputs of the blocks that read them are compared"
               : "interpolated features, which are compared where they are merged"));
  }

  Collectives& control_;
  const Plan& plan_;
  const ModelSpec& model_;
  const std::vector<StepRecord>&layout_, &reference_;
  const bool is_root_;
  Bounds bounds_;
  int64_t step_ = 0, update_ = 0;        ///< counted from 1; skipped steps update nothing
  std::vector<int> unit_of_param_;       ///< the first that reads it; -1: none
  std::vector<Projections> drift_;       ///< the differences of all updates so far
  std::vector<double> allowed_squares_;  ///< of updates, of all steps so far
  std::map<std::pair<int, Compared>, ComparedUnit> units_;
  LayoutComparison result_;
};

}  // namespace

LayoutComparison compare_records(Collectives& control, const Plan& plan,
                                 const std::vector<StepRecord>& layout,
                                 const std::vector<StepRecord>& reference) {
  return Comparison(control, plan, layout, reference).run();
}

}  // namespace zea
