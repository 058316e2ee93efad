// SPDX-License-Identifier: Apache-2.0
// Every schedule on paper, over many pipelines: chains and trees of encoders before a language
// model, of any number of stages and microbatches. Each ends, does everything once and in a
// possible order, keeps no more in flight than it says, and takes as long as its paper says.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <numeric>
#include <string>

#include "schedule/pipeline.hpp"
#include "schedule/simulate.hpp"

namespace zea::test_pipeline_schedules {
namespace {

constexpr PipelineSchedule kSchedules[] = {PipelineSchedule::GPipe, PipelineSchedule::OneFOneB,
                                           PipelineSchedule::Interleaved,
                                           PipelineSchedule::ZeroBubble};

/// Encoders of so many units, each a group of its own, before a language model of `groups` groups
/// with `chunks` stages each, one unit per stage.
struct Shape {
  std::vector<int> encoders;
  int groups = 1;
  int chunks = 1;
  bool trains_encoders = true;
};

struct Case {
  ModelSpec model;
  Pipeline pipeline;
  std::vector<UnitCost> costs;
  int first_llm_group = 0;
};

class CaseBuilder {
 public:
  explicit CaseBuilder(const Shape& shape, PipelineSchedule schedule) {
    case_.pipeline.schedule = schedule;
    std::vector<int> features;
    for (size_t e = 0; e < shape.encoders.size(); ++e) {
      for (int i = 0; i < shape.encoders[e]; ++i) {
        add_group();
        add_unit("encoder" + std::to_string(e), shape.trains_encoders, last_group(),
                 i == 0 ? std::vector<int>{} : std::vector<int>{last_unit()});
      }
      features.push_back(last_unit());
    }
    case_.first_llm_group = last_group() + 1;
    for (int i = 0; i < shape.groups; ++i) add_group();
    for (int i = 0; i < shape.groups * shape.chunks; ++i)
      add_unit("llm", true, case_.first_llm_group + i % shape.groups,
               i == 0 ? features : std::vector<int>{last_unit()});
    case_.costs.assign(case_.model.units.size(), {1, 1, 1, 0});
  }
  Case build() { return std::move(case_); }

 private:
  int last_unit() const { return static_cast<int>(case_.model.units.size()) - 1; }
  int last_group() const { return static_cast<int>(case_.pipeline.stage_groups.size()) - 1; }
  void add_group() { case_.pipeline.stage_groups.push_back({"", last_group() + 1, 1, {}}); }
  void add_unit(const std::string& module, bool trains, int group, const std::vector<int>& inputs) {
    ParamSpec param;
    param.trainable = trains;
    UnitSpec unit{module + "." + std::to_string(last_unit() + 1),
                  module,
                  UnitKind::Block,
                  {static_cast<int>(case_.model.params.size())},
                  {}};
    for (int input : inputs) unit.inputs.push_back({input, false});
    case_.model.params.push_back(param);
    case_.model.units.push_back(unit);
    case_.pipeline.stage_of_unit.push_back(last_unit());
    case_.pipeline.stage_groups[group].stages.push_back(last_unit());
    case_.pipeline.stages.push_back({group, {last_unit()}});
  }

  Case case_;
};

Case make_case(const Shape& shape, PipelineSchedule schedule) {
  return CaseBuilder(shape, schedule).build();
}

Simulation simulate(const Case& c, int microbatches, double transfer = 0) {
  return zea::simulate(c.pipeline, c.model, c.costs, microbatches, transfer);
}

/// All sizes there are, which takes a minute, in place of a sample of them.
bool is_whole() {
  return std::getenv("ZEA_WHOLE") != nullptr;
}

std::vector<int> up_to(int first, int last) {
  std::vector<int> numbers(last - first + 1);
  std::iota(numbers.begin(), numbers.end(), first);
  return numbers;
}

/// Chains, and trees of one to three encoders with stages of their own.
std::vector<Shape> shapes_for(PipelineSchedule schedule) {
  const int chunks = schedule == PipelineSchedule::Interleaved ? 2 : 1;
  std::vector<Shape> shapes;
  for (int groups = 2; groups <= 16; ++groups) shapes.push_back({{}, groups, chunks});
  for (int groups : is_whole() ? up_to(1, 16) : std::vector<int>{1, 2, 3, 5, 8})
    for (const std::vector<int>& encoders :
         {std::vector<int>{1}, {4}, {1, 1}, {3, 2}, {1, 4, 2}, {2, 7, 1}})
      for (bool trains : {true, false}) shapes.push_back({encoders, groups, chunks, trains});
  shapes.push_back({{2, 1}, 4, 3 * chunks});
  shapes.push_back({{}, 4, 5 * chunks});
  return shapes;
}

std::string name_of(const Shape& shape, PipelineSchedule schedule, int microbatches) {
  std::string text = Choice(schedule).name() + ", encoders";
  for (int encoder : shape.encoders) text += " " + std::to_string(encoder);
  return text + ", llm " + std::to_string(shape.groups) + " x " + std::to_string(shape.chunks) +
         ", microbatches " + std::to_string(microbatches);
}

/// Calls `check(shape, schedule, microbatches)` for each.
template <class Check>
void for_every_pipeline(Check&& check) {
  for (PipelineSchedule schedule : kSchedules)
    for (const Shape& shape : shapes_for(schedule))
      for (int microbatches :
           is_whole() ? up_to(1, 64) : std::vector<int>{1, 2, 3, 4, 5, 7, 8, 12, 16, 17, 33, 64})
        check(shape, schedule, microbatches);
}

TEST(PipelineSchedules, EveryOneEnds) {
  for_every_pipeline([](const Shape& shape, PipelineSchedule schedule, int microbatches) {
    for (double transfer : {0.0, 0.3})
      EXPECT_EQ(simulate(make_case(shape, schedule), microbatches, transfer).deadlock, "")
          << name_of(shape, schedule, microbatches);
  });
}

TEST(PipelineSchedules, EveryPassIsMadeOnceAndInOrder) {
  for_every_pipeline([](const Shape& shape, PipelineSchedule schedule, int microbatches) {
    const Case c = make_case(shape, schedule);
    const bool splits = schedule == PipelineSchedule::ZeroBubble && !c.pipeline.is_one_group();
    for (size_t p = 0; p < c.pipeline.stage_groups.size(); ++p) {
      const auto passes =
          passes_of_group(c.pipeline, c.model, static_cast<int>(p), microbatches, false);
      std::map<std::pair<int, int>, std::vector<PassKind>> kinds;
      for (const Pass& pass : passes) kinds[{pass.stage, pass.microbatch}].push_back(pass.kind);
      const std::vector<PassKind> expected =
          splits ? std::vector{PassKind::Forward, PassKind::BackwardInput, PassKind::BackwardWeight}
                 : std::vector{PassKind::Forward, PassKind::Backward};

      ASSERT_EQ(kinds.size(), c.pipeline.stage_groups[p].stages.size() * microbatches);
      for (const auto& [key, order] : kinds)
        EXPECT_EQ(order, expected) << name_of(shape, schedule, microbatches);
    }
  });
}

TEST(PipelineSchedules, ForwardOnlyIsTheForwardsInTheSameOrder) {
  for_every_pipeline([](const Shape& shape, PipelineSchedule schedule, int microbatches) {
    const Case c = make_case(shape, schedule);
    std::vector<std::vector<Pass>> forwards;
    for (size_t p = 0; p < c.pipeline.stage_groups.size(); ++p) {
      const int group = static_cast<int>(p);
      auto training = passes_of_group(c.pipeline, c.model, group, microbatches, false);
      std::erase_if(training, [](const Pass& pass) { return pass.kind != PassKind::Forward; });
      forwards.push_back(passes_of_group(c.pipeline, c.model, group, microbatches, true));

      EXPECT_EQ(forwards.back(), training) << name_of(shape, schedule, microbatches);
    }
    EXPECT_EQ(zea::simulate(c.pipeline, c.model, c.costs, forwards, 0.1).deadlock, "");
  });
}

TEST(PipelineSchedules, InFlightIsBounded) {
  for_every_pipeline([](const Shape& shape, PipelineSchedule schedule, int microbatches) {
    if (schedule == PipelineSchedule::Interleaved || shape.chunks > 1) return;
    const Case c = make_case(shape, schedule);
    const int deepest = shape.encoders.empty()
                            ? 0
                            : *std::max_element(shape.encoders.begin(), shape.encoders.end());
    size_t group = 0;
    const auto check = [&](int places_after) {
      int forwards = 0, most = 0, waiting = 0, most_waiting = 0;
      for (const Pass& pass :
           passes_of_group(c.pipeline, c.model, static_cast<int>(group), microbatches, false)) {
        const bool weight = pass.kind == PassKind::BackwardWeight;
        const bool forward = pass.kind == PassKind::Forward;
        if (!weight) forwards += forward ? 1 : -1;
        if (!forward) waiting += weight ? -1 : pass.kind == PassKind::BackwardInput;
        most = std::max(most, forwards);
        most_waiting = std::max(most_waiting, forwards + waiting);
      }
      const int all = c.pipeline.is_one_group() ? 1 : microbatches;
      const int limit = schedule == PipelineSchedule::GPipe ? all : places_after + 1;
      EXPECT_EQ(most, std::min(all, limit)) << name_of(shape, schedule, microbatches);
      EXPECT_LE(most_waiting, std::min(all, std::max(limit, deepest + shape.groups)));
      ++group;
    };

    for (int encoder : shape.encoders)
      for (int i = 0; i < encoder; ++i) check(encoder - 1 - i + shape.groups);
    for (int i = 0; i < shape.groups; ++i) check(shape.groups - 1 - i);
  });
}

TEST(PipelineSchedules, OneFOneBTakesWhatItsFormulaSays) {
  for (int groups = 1; groups <= 16; ++groups)
    for (int microbatches = 1; microbatches <= 64; ++microbatches)
      for (PipelineSchedule schedule : {PipelineSchedule::GPipe, PipelineSchedule::OneFOneB}) {
        const Simulation simulation = simulate(make_case({{}, groups, 1}, schedule), microbatches);
        const double slots = microbatches + groups - 1;
        EXPECT_DOUBLE_EQ(simulation.makespan, slots * 3);
        EXPECT_NEAR(simulation.bubble(), (groups - 1) / slots, 1e-12);
      }
}

TEST(PipelineSchedules, ZeroBubbleAndInterleavedTakeWhatTheirPapersSay) {
  const double forward = 2, input = 3, weight = 1.5;
  for (int groups = 2; groups <= 9; ++groups)
    for (int rounds = 1; rounds <= 4; ++rounds) {
      const int microbatches = rounds * groups;
      const auto makespan = [&](PipelineSchedule schedule, int chunks) {
        Case c = make_case({{}, groups, chunks}, schedule);
        for (UnitCost& cost : c.costs) cost = {forward, input, weight, 0};
        return simulate(c, microbatches).makespan;
      };
      const double work = forward + input + weight;

      EXPECT_NEAR(makespan(PipelineSchedule::ZeroBubble, 1),
                  microbatches * work + (groups - 1) * (forward + input - weight), 1e-9);
      for (int chunks : {2, 3})
        EXPECT_NEAR(makespan(PipelineSchedule::Interleaved, chunks),
                    microbatches * chunks * work + (groups - 1) * work, 1e-9);
    }
}

TEST(PipelineSchedules, ZeroBubbleAndInterleavedAreShorter) {
  for (int groups = 2; groups <= 16; ++groups)
    for (int microbatches = 1; microbatches <= 64; ++microbatches) {
      const auto makespan = [&](PipelineSchedule schedule, int chunks) {
        Case c = make_case({{}, groups, chunks}, schedule);
        for (UnitCost& cost : c.costs) cost = {1.0 / chunks, 1.0 / chunks, 1.0 / chunks, 0};
        const Simulation simulation = simulate(c, microbatches);
        EXPECT_EQ(simulation.deadlock, "");
        return simulation.makespan;
      };
      const double plain = makespan(PipelineSchedule::OneFOneB, 1);
      const std::string name =
          std::to_string(groups) + " groups, " + std::to_string(microbatches) + " microbatches";

      EXPECT_LT(makespan(PipelineSchedule::ZeroBubble, 1), plain) << name;
      EXPECT_GE(makespan(PipelineSchedule::GPipe, 1), plain) << name;
      if (microbatches == 1) continue;
      EXPECT_LT(makespan(PipelineSchedule::Interleaved, 2), plain) << name;
    }
}

TEST(Draw, IsALineForEachPlace) {
  const Case c = make_case({{}, 2, 1}, PipelineSchedule::ZeroBubble);
  Case chunked = make_case({{}, 2, 2}, PipelineSchedule::Interleaved);
  chunked.pipeline.stage_groups[1].name = "llm.pp1";

  EXPECT_EQ(draw(simulate(c, 2), c.pipeline, 21),
            "group 0 |F0-F1-...B0-W0-B1-W1-|\n"
            "group 1 |...F0-B0-F1-B1-W0-W1-|\n");
  EXPECT_EQ(draw(simulate(chunked, 2), chunked.pipeline, 60),
            "group 0 |F0a-F1a-F0b-F1b-........B0b-----....B1b-----B0a-----B1a-----|\n"
            "llm.pp1 |....F0a-F1a-F0b-B0b-----F1b-B1b-----B0a-----B1a-----........|\n");
}

/// Two encoders in the same stages, one of which is read from both of its stages (taps), before a
/// language model whose first stage reads all.
Case colocated_encoders(PipelineSchedule schedule) {
  Case c;
  c.pipeline.schedule = schedule;
  const std::vector<std::vector<int>> inputs{{}, {0}, {0, 1}, {}, {3}, {2, 4}, {5}};
  for (size_t u = 0; u < inputs.size(); ++u) {
    c.model.params.emplace_back();
    UnitSpec unit{"u" + std::to_string(u), "any", UnitKind::Block, {static_cast<int>(u)}, {}};
    for (int input : inputs[u]) unit.inputs.push_back({input, false});
    c.model.units.push_back(unit);
  }
  const std::vector<std::vector<int>> stages{{0, 1, 3}, {2, 4}, {5}, {6}};
  c.pipeline.stage_of_unit.resize(inputs.size());
  for (int stage = 0; stage < static_cast<int>(stages.size()); ++stage) {
    c.pipeline.stage_groups.push_back({"", stage, 1, {stage}});
    c.pipeline.stages.push_back({stage, stages[stage]});
    for (int unit : stages[stage]) c.pipeline.stage_of_unit[unit] = stage;
  }
  c.costs.assign(inputs.size(), {1, 1, 1, 0});
  return c;
}

TEST(PipelineSchedules, SeveralMessagesOfAPassDoNotCross) {
  for (PipelineSchedule schedule : kSchedules)
    for (int microbatches : {1, 2, 5, 9}) {
      const Simulation simulation = simulate(colocated_encoders(schedule), microbatches, 0.2);
      EXPECT_EQ(simulation.deadlock, "") << Choice(schedule).name();
      for (const auto& group : simulation.groups)
        EXPECT_EQ(group.size(),
                  microbatches * (schedule == PipelineSchedule::ZeroBubble ? 3u : 2u));
    }
}

TEST(PipelineSchedules, OneStageGroupTakesMicrobatchesInTurn) {
  for (PipelineSchedule schedule : kSchedules) {
    const Case c = make_case({{}, 1, 1}, schedule);
    const std::vector<Pass> expected{{PassKind::Forward, 0, 0},
                                     {PassKind::Backward, 0, 0},
                                     {PassKind::Forward, 0, 1},
                                     {PassKind::Backward, 0, 1}};
    EXPECT_EQ(passes_of_group(c.pipeline, c.model, 0, 2, false), expected);
  }
}

/// The simulator's teeth: orders that cannot end.
class WrongOrder : public ::testing::Test {
 protected:
  std::vector<std::vector<Pass>> passes(int microbatches) const {
    std::vector<std::vector<Pass>> all;
    for (size_t p = 0; p < case_.pipeline.stage_groups.size(); ++p)
      all.push_back(
          passes_of_group(case_.pipeline, case_.model, static_cast<int>(p), microbatches, false));
    return all;
  }
  std::string deadlock(const std::vector<std::vector<Pass>>& passes) const {
    return zea::simulate(case_.pipeline, case_.model, case_.costs, passes, 0).deadlock;
  }

  Case case_ = make_case({{}, 2, 1}, PipelineSchedule::OneFOneB);
};

TEST_F(WrongOrder, BackwardBeforeTheReaderHasItsInput) {
  auto all = passes(2);
  std::swap(all[1][0], all[1][2]);  // group 1 begins with microbatch 1

  EXPECT_EQ(deadlock(all),
            "group 0 has come to the backward of stage 0 in microbatch 0 and waits for the "
            "gradient of llm.0 in microbatch 0 from group 1\n"
            "group 1 has come to the forward of stage 1 in microbatch 1 and waits for the output "
            "of llm.0 in microbatch 1 from group 0, but the next that group 0 sends it is the "
            "output of llm.0 in microbatch 0");
}

TEST_F(WrongOrder, TooFewForwardsAhead) {
  auto all = passes(2);
  all[0] = {{PassKind::Forward, 0, 0},
            {PassKind::Backward, 0, 0},
            {PassKind::Forward, 0, 1},
            {PassKind::Backward, 0, 1}};
  all[1] = {{PassKind::Forward, 1, 0},
            {PassKind::Forward, 1, 1},
            {PassKind::Backward, 1, 0},
            {PassKind::Backward, 1, 1}};

  EXPECT_EQ(deadlock(all),
            "group 0 has come to the backward of stage 0 in microbatch 0 and waits for the "
            "gradient of llm.0 in microbatch 0 from group 1\n"
            "group 1 has come to the forward of stage 1 in microbatch 1 and waits for the output "
            "of llm.0 in microbatch 1 from group 0");
}

TEST_F(WrongOrder, BackwardBeforeItsOwnForward) {
  auto all = passes(1);
  std::swap(all[0][0], all[0][1]);

  EXPECT_NE(deadlock(all).find("group 0 has come to the backward of stage 0 in microbatch 0 and "
                               "waits for the forward of stage 0, which comes later"),
            std::string::npos);
}

}  // namespace
}  // namespace zea::test_pipeline_schedules
