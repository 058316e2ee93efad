// SPDX-License-Identifier: Apache-2.0
// The records that zea --verify-layout compares: every layout equals one rank within its bounds, in
// fp64, fp32 and bf16, and planted faults are found at their unit, rank, microbatch and step.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <limits>

#include "checkpoint/load_weights.hpp"
#include "core/dtype.hpp"
#include "spec/parameter_names.hpp"
#include "support/axis_layouts.hpp"
#include "support/compared_run.hpp"
#include "support/family_layouts.hpp"
#include "support/mpi_main.hpp"
#include "train/compare_records.hpp"
#include "train/training_data.hpp"

namespace zea::testing::test_step_records {
namespace {

constexpr int64_t kSteps = 2;

/// Queries of clipped linears have infinite bounds, as in some files.
struct UnboundedSource : FilledSource {
  using FilledSource::FilledSource;

  void read(const std::string& name, const Shape& shape, const Extent& extent, DType dtype,
            void* target) const override {
    const int sign = sign_of_unbounded(name);
    if (sign == 0 || name.find(".q_proj.") == std::string::npos)
      return FilledSource::read(name, shape, extent, dtype, target);
    const double infinite = sign * std::numeric_limits<double>::infinity();
    convert_elements(DType::Float64, &infinite, dtype, target, 1);
  }
};

std::vector<StepRecord> record(const Communicator& ranks, const TinyRunOptions& options,
                               const Dataset& dataset) {
  const Plan plan = plan_of(options, ranks.size());
  Mesh mesh(ranks, plan.mesh, make_mpi_collectives);
  const std::unique_ptr<Collectives> control = make_mpi_collectives(ranks);
  StepRecorder recorder(plan);
  Engine engine(plan, mesh, at::kCPU, recorder.observed(options.run_unit));
  load_weights(engine, UnboundedSource(plan.model, options.config_json, options.weights_seed));
  return record_steps(engine, recorder, *control, dataset, loading_on(plan, ranks.rank()), kSteps);
}

class StepRecords : public ::testing::Test {
 protected:
  /// On rank 0.
  LayoutComparison compare(const TinyRunOptions& layout, const TinyRunOptions& reference,
                           const Dataset& dataset) const {
    const std::vector<StepRecord> got = record(ranks_, layout, dataset);
    std::vector<StepRecord> expected;
    if (ranks_.rank() == 0) expected = record(alone_, reference, dataset);
    return compare_records(*control_, plan_of(layout, ranks_.size()), got, expected);
  }
  LayoutComparison compare(const AxisLayout& layout, const char* preset) const {
    return compare(run_on(layout, preset), run_on({.name = "one rank"}, preset), dataset_);
  }
  bool is_root() const { return ranks_.rank() == 0; }

  const Communicator ranks_ = first_ranks(kAxisRanks);
  const Communicator alone_ = ranks_.split(ranks_.rank(), "alone");
  const std::unique_ptr<Collectives> control_ = make_mpi_collectives(ranks_);
  const MemoryDataset dataset_ = axis_dataset();
};

/// The largest share of its bound that each kind of value has, for the table of tests/README.md.
void print_shares(const std::string& name, const LayoutComparison& comparison) {
  if (std::getenv("ZEA_SHARES") == nullptr) return;
  std::map<Compared, double> shares;
  for (const ComparedUnit& unit : comparison.units)
    shares[unit.kind] = std::max(shares[unit.kind], unit.largest.share());
  std::printf("%-40s", name.c_str());
  for (const auto& [kind, share] : shares) std::printf(" %s %.3f", compared_name(kind), share);
  std::printf("\n");
}

TEST_F(StepRecords, EveryLayoutIsWithinItsBounds) {
  for (const char* preset : {"fp64", "fp32", "bf16"})
    for (const AxisLayout& layout : kAxisLayouts) {
      SCOPED_TRACE(std::string(layout.name) + ", " + preset);
      const LayoutComparison comparison = compare(layout, preset);
      if (!is_root()) continue;
      print_shares(std::string(preset) + " " + layout.name, comparison);
      EXPECT_FALSE(comparison.first) << describe(comparison);
      EXPECT_TRUE(comparison.notes.empty());
    }
}

/// Each family on a grid or in stages: the rows of every kind of unit have names.
TEST_F(StepRecords, EveryFamilyEqualsOneRank) {
  for (size_t f = 0; f < family_layouts().size(); ++f) {
    const FamilyLayout& layout = family_layouts()[f];
    if (layout.is_pipeline != (f / 2 % 2 == 1)) continue;
    SCOPED_TRACE(layout.name());
    const MemoryDataset dataset = layout.dataset();
    const LayoutComparison comparison = compare(layout.run(), layout.run_on_one_rank(), dataset);
    if (!is_root()) continue;
    print_shares(layout.name(), comparison);
    EXPECT_FALSE(comparison.first) << describe(comparison);
    // Interpolated features, and keys of which ranks make parts, are not compared themselves.
    const auto is_of = [&](const char* what) {
      return layout.name().find(what) != std::string::npos;
    };
    const bool has_note = is_of("onevision") || is_of("shared keys");
    EXPECT_EQ(comparison.notes.size(), has_note ? 1u : 0u) << describe(comparison);
  }
}

double largest_share(const LayoutComparison& comparison, Compared kind) {
  double share = 0;
  for (const ComparedUnit& unit : comparison.units)
    if (unit.kind == kind) share = std::max(share, unit.largest.share());
  return share;
}

/// One rank in fp32 and bf16 against the same in fp64: the errors that the bounds are made for.
/// Bounds that are far from the errors would find little.
TEST_F(StepRecords, BoundsHoldErrorsAgainstFp64) {
  for (const int64_t layers : {2, 10})
    for (const char* preset : {"fp32", "bf16"}) {
      const std::string name = std::string(preset) + ", layers " + std::to_string(layers);
      SCOPED_TRACE(name);
      TinyRunOptions rounded = run_on({.name = "one rank"}, preset);
      rounded.config_json = tiny_llava_config({.tied = true, .layers = layers});
      TinyRunOptions exact = rounded;
      exact.deck.precision.preset = "fp64";
      if (!is_root()) continue;
      const std::unique_ptr<Collectives> control = make_mpi_collectives(alone_);
      const LayoutComparison comparison =
          compare_records(*control, plan_of(rounded, 1), record(alone_, rounded, dataset_),
                          record(alone_, exact, dataset_));
      print_shares(name, comparison);
      EXPECT_FALSE(comparison.first) << describe(comparison);
      for (const Compared kind :
           {Compared::Outputs, Compared::OutputGradients, Compared::ParameterGradients})
        EXPECT_GT(largest_share(comparison, kind), 0.01) << compared_name(kind);
    }
}

// Faults, each planted in one unit: the function that the engine runs for it is another there.

UnitOutput run_on_microbatch(const UnitArguments& call, const Microbatch& other) {
  return run_unit(
      {call.model, call.unit, call.parameters, call.inputs, other, call.head, call.layers});
}
UnitOutput run_without_ranks(const UnitArguments& call) {
  return run_unit(
      {call.model, call.unit, call.parameters, call.inputs, call.microbatch, call.head, Layers()});
}

RunUnit faulty(const std::string& name, const RunUnit& fault) {
  return [=](const UnitArguments& call) {
    return call.unit.name == name ? fault(call) : run_unit(call);
  };
}

/// The same value, whose gradient is `factor` times as large on the way back.
at::Tensor with_scaled_gradient(const at::Tensor& value, double factor) {
  return value * factor + (value * (1 - factor)).detach();
}

class PlantedFaults : public StepRecords {
 protected:
  /// Returns what is found first on a layout with this fault; rank 0 must find something.
  FoundDifference first_of(const AxisLayout& layout, const RunUnit& fault,
                           const std::function<void(Plan&)>& adjust = {},
                           const char* preset = "fp64") const {
    TinyRunOptions options = run_on(layout, preset);
    options.run_unit = fault;
    options.adjust = adjust;
    const LayoutComparison comparison =
        compare(options, run_on({.name = "one rank"}, preset), dataset_);
    if (!is_root()) return {};
    EXPECT_TRUE(comparison.first);
    return comparison.first.value_or(FoundDifference{});
  }
  void expect_found(const FoundDifference& first, Compared kind, const std::string& unit,
                    const std::vector<int>& ranks, int64_t step = 1) const {
    if (!is_root()) return;
    SCOPED_TRACE(describe(first));
    EXPECT_EQ(compared_name(first.kind), std::string(compared_name(kind)));
    EXPECT_EQ(first.unit, unit);
    EXPECT_EQ(first.ranks, ranks);
    EXPECT_EQ(first.step, step);
  }
  bool is_rank(int rank) const { return ranks_.rank() == rank; }

  std::deque<Microbatch> wrong_;  ///< whose attention the backward reads, too
};

constexpr AxisLayout kWholeTokens{.name = "tp", .tp = 2, .sequence_parallel = false};

TEST_F(PlantedFaults, ASumOverTpThatIsLost) {
  for (const char* preset : {"fp64", "fp32", "bf16"})
    expect_found(first_of(kWholeTokens, faulty("llm.layers.1", run_without_ranks), {}, preset),
                 Compared::Outputs, "llm.layers.1", {0, 1, 2, 3});
}

TEST_F(PlantedFaults, AGradientThatOneReplicaScales) {
  const RunUnit fault = faulty("llm.layers.1", [&](const UnitArguments& call) {
    UnitOutput made = run_unit(call);
    if (is_rank(2)) made.value = with_scaled_gradient(made.value, 2);
    return made;
  });
  for (const char* preset : {"fp64", "fp32", "bf16"})
    expect_found(first_of({"full_shard"}, fault, {}, preset), Compared::OutputGradients,
                 "llm.layers.0", {2});
}

/// All rows of one rank are wrong by twice their bound: outputs, then their gradients.
TEST_F(PlantedFaults, RelativeErrorsOfTwiceTheBound) {
  for (const char* preset : {"fp32", "bf16"}) {
    SCOPED_TRACE(preset);
    double bounds[2] = {};
    if (const LayoutComparison clean = compare({"full_shard"}, preset); is_root())
      for (const ComparedUnit& unit : clean.units) {
        if (unit.unit == "llm.layers.1" && unit.kind == Compared::Outputs)
          bounds[0] = unit.largest.bound;
        if (unit.unit == "llm.layers.0" && unit.kind == Compared::OutputGradients)
          bounds[1] = unit.largest.bound;
      }
    control_->broadcast(bounds, 2, DType::Float64, 0).wait();
    const auto planted = [&](const at::Tensor& value, bool is_output) {
      return is_output ? value * (1 + 2 * bounds[0])
                       : with_scaled_gradient(value, 1 + 2 * bounds[1]);
    };
    for (const bool is_output : {true, false}) {
      const RunUnit fault = faulty("llm.layers.1", [&](const UnitArguments& call) {
        UnitOutput made = run_unit(call);
        if (is_rank(2)) made.value = planted(made.value, is_output);
        return made;
      });
      expect_found(first_of({"full_shard"}, fault, {}, preset),
                   is_output ? Compared::Outputs : Compared::OutputGradients,
                   is_output ? "llm.layers.1" : "llm.layers.0", {2});
    }
  }
}

TEST_F(PlantedFaults, AttentionAcrossABoundaryOnOneRank) {
  const RunUnit fault = faulty("llm.layers.0", [&](const UnitArguments& call) {
    if (!is_rank(2)) return run_unit(call);
    Microbatch& wrong = wrong_.emplace_back(call.microbatch);
    wrong.text_attention[0].mask =
        AttentionMask(std::vector{Segment{0, std::ssize(wrong.words)}}, true);
    return run_on_microbatch(call, wrong);
  });
  for (const char* preset : {"fp64", "fp32", "bf16"})  // rank 3 adds up its heads, too
    expect_found(first_of(kWholeTokens, fault, {}, preset), Compared::Outputs, "llm.layers.0",
                 {2, 3});
}

TEST_F(PlantedFaults, PositionsThatRestartOnACpRank) {
  const RunUnit fault = faulty("llm.layers.0", [&](const UnitArguments& call) {
    if (!is_rank(1)) return run_unit(call);
    Microbatch& wrong = wrong_.emplace_back(call.microbatch);
    wrong.text_attention[0].rotary_cosines = wrong.text_attention[0].rotary_cosines.flip(0);
    return run_on_microbatch(call, wrong);
  });
  expect_found(first_of({.name = "cp", .cp = 2}, fault), Compared::Outputs, "llm.layers.0", {1});
}

TEST_F(PlantedFaults, ANormWhoseGradientTpRanksDoNotSum) {
  const std::string name = "language_model.model.layers.1.input_layernorm.weight";
  const auto not_summed = [&](Plan& plan) {
    if (plan.world_size() > 1) plan.cuts[plan.model.param_index(name)].holders = 1;
  };
  const FoundDifference first = first_of({.name = "tp", .tp = 2}, run_unit, not_summed);
  if (!is_root()) return;
  EXPECT_EQ(first.parameter, name);
  EXPECT_EQ(first.kind, Compared::ParameterGradients) << describe(first);
  EXPECT_EQ(first.step, 1);
}

TEST_F(PlantedFaults, AnUpdateThatOneRankMakesLarger) {
  const std::string name = "language_model.model.layers.0.mlp.down_proj.weight";
  const auto larger = [&](Plan& plan) {
    if (plan.world_size() > 1 && is_rank(3))
      plan.param_rules[plan.model.param_index(name)].lr_factor = 1.5;
  };
  const FoundDifference first = first_of({"full_shard"}, run_unit, larger);
  if (!is_root()) return;
  EXPECT_EQ(first.parameter, name);
  EXPECT_EQ(first.kind, Compared::Updates) << describe(first);
  EXPECT_EQ(first.step, 1);
}

/// Layout and reference update it alike, which the deck forbids in the first update.
TEST_F(PlantedFaults, AFrozenParameterThatBothUpdate) {
  TinyRunOptions layout = run_on({"full_shard"}, "fp32");
  const TinyRunOptions one = run_on({"one rank"}, "fp32");
  const std::vector<StepRecord> got = record(ranks_, layout, dataset_);
  std::vector<StepRecord> expected;
  if (is_root()) expected = record(alone_, one, dataset_);
  const std::string name = "language_model.model.layers.1.mlp.down_proj.weight";
  layout.deck.optim.frozen = {name + " = 1"};
  const LayoutComparison found =
      compare_records(*control_, plan_of(layout, ranks_.size()), got, expected);
  if (!is_root()) return;
  const FoundDifference first = found.first.value_or(FoundDifference{});
  EXPECT_EQ(first.kind, Compared::Updates) << describe(first);
  EXPECT_EQ(first.parameter, name);
  EXPECT_EQ(first.step, 1);
  EXPECT_NE(describe(first).find("it is frozen in this update"), std::string::npos);
}

TEST_F(PlantedFaults, ALossThatOneRankScales) {
  const RunUnit fault = faulty("llm.head", [&](const UnitArguments& call) {
    UnitOutput made = run_unit(call);
    if (is_rank(1)) made.loss = made.loss * 1.01;
    return made;
  });
  expect_found(first_of({"full_shard"}, fault), Compared::Losses, "loss", {});
}

TEST_F(PlantedFaults, ARowOfALaterMicrobatchAndStep) {
  const AxisLayout layout{"full_shard"};
  const std::vector<StepRecord> clean = record(ranks_, run_on(layout, "fp64"), dataset_);
  const Plan plan = plan_of(run_on(layout, "fp64"), kAxisRanks);
  const auto unit = std::ranges::find(plan.model.units, "llm.layers.1", &UnitSpec::name);
  const auto rows_of = [&](size_t step) {
    const auto number = static_cast<int>(unit - plan.model.units.begin());
    return clean[step].rows.at({number, RowsOf::Output});
  };
  const int in_first_step = rows_of(0).back().microbatch + 1;
  const std::vector<RowRecord> rows = rows_of(1);
  const int last = rows.back().microbatch;
  const RowName expected = std::ranges::find(rows, last, &RowRecord::microbatch)->name;
  int calls = 0;
  const RunUnit fault = faulty("llm.layers.1", [&](const UnitArguments& call) {
    UnitOutput made = run_unit(call);
    if (is_rank(0) && calls++ == in_first_step + last) {
      at::Tensor more = at::zeros_like(made.value);
      more[0].fill_(1e-6);
      made.value = made.value + more;
    }
    return made;
  });
  const FoundDifference first = first_of(layout, fault);
  expect_found(first, Compared::Outputs, "llm.layers.1", {0}, 2);
  if (!is_root()) return;
  EXPECT_EQ(first.microbatch, last);
  EXPECT_EQ(first.row, expected);
}

/// Adapters of a projector that merges four tokens.
TEST_F(StepRecords, DropoutOfMergedFeaturesEqualsOneRank) {
  const FamilyLayout layout{&measured_model("qwen2_vl"), false};
  const auto adapted = [](TinyRunOptions run) {
    run.deck.encoders["vision"].lora = {.targets = {"*"}, .rank = 2, .dropout = 0.5};
    return run;
  };
  const TinyRunOptions run = adapted(layout.run());
  const MemoryDataset dataset = layout.dataset();
  const LayoutComparison comparison = compare(run, adapted(layout.run_on_one_rank()), dataset);
  EXPECT_FALSE(comparison.first) << describe(comparison);
}

TEST_F(PlantedFaults, DropoutThatARankDrawsByItself) {
  TinyRunOptions layout = run_on({.name = "tp", .tp = 2}, "fp64"), one = run_on({"one"}, "fp64");
  layout.deck.llm.dropout = one.deck.llm.dropout = 0.2;
  const LayoutComparison same = compare(layout, one, dataset_);
  EXPECT_FALSE(same.first) << describe(same);

  layout.run_unit = faulty("llm.layers.0", [&](const UnitArguments& call) {
    Microbatch& wrong = wrong_.emplace_back(call.microbatch);
    if (is_rank(1)) wrong.text_keys.here = wrong.text_keys.here + 1;
    return run_on_microbatch(call, wrong);
  });
  const LayoutComparison other = compare(layout, one, dataset_);
  if (is_root())
    expect_found(other.first.value_or(FoundDifference{}), Compared::Outputs, "llm.layers.0", {1});
}

}  // namespace
}  // namespace zea::testing::test_step_records
