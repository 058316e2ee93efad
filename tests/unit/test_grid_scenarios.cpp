// SPDX-License-Identifier: Apache-2.0
// The scenarios of the grids are what they say they are: on paper, every rank's part of every
// microbatch of their five steps, on the very grids that they are tried on.
#include "support/grid_scenarios.hpp"

#include <gtest/gtest.h>

#include <set>

#include "zea/data/sampler.hpp"
#include "zea/train/training_data.hpp"

namespace zea::testing {
namespace {

/// What happens in a scenario on one of its grids.
enum class Fact {
  ImageOnTwoRanks,    ///< the features of one image lie on several cp ranks
  RankWithoutImage,   ///< a cp rank has tokens, but none of the images of its microbatch
  RankWithoutTokens,  ///< a cp rank has no token of a microbatch
  RankWithoutItems,   ///< a rank has no image to encode where others have
  StepWithoutImages,  ///< nobody has one
  StepWithImages,
  SeveralMicrobatches,
  SeveralSamplesInARow,
  BothWays,
  PaddedVocabulary,
  RepeatedKvHeads,
};

class Facts {
 public:
  Facts(const GridScenario& scenario, const Grid& grid)
      : run_(run_of(scenario, grid)),
        plan_(make_plan(run_.deck, run_.config_json, grid.ranks())),
        dataset_(dataset_of(scenario, grid)) {
    const int64_t vocabulary = plan_.model.text.vocabulary;
    note(vocabulary % grid.llm.tp != 0, Fact::PaddedVocabulary);
    note(plan_.mesh.grid("llm").kv_holders > 1, Fact::RepeatedKvHeads);
    Sampler sampler(static_cast<int64_t>(dataset_.index().size()), run_.deck.schedule.global_batch,
                    run_.deck.run.seed, run_.deck.data.shuffle);
    for (int64_t step = 0; step < run_.steps; ++step)
      look_at(plan_.step_plan(step, sampler.global_batch(step), dataset_.index()));
  }

  const std::set<Fact>& found() const { return found_; }

 private:
  void note(bool holds, Fact fact) {
    if (holds) found_.insert(fact);
  }

  void look_at(const StepPlan& step) {
    int64_t items = 0;
    for (size_t r = 0; r < step.replicas.size(); ++r) {
      note(step.replicas[r].size() > 1, Fact::SeveralMicrobatches);
      for (const MicrobatchPlan& part : step.replicas[r])
        items += look_at(part, static_cast<int>(r));
    }
    note(items == 0, Fact::StepWithoutImages);
    note(items > 0, Fact::StepWithImages);
  }

  int64_t look_at(const MicrobatchPlan& part, int replica) {
    const LoadedMicrobatch loaded = load_microbatch(dataset_, loading_of(plan_), part.samples);
    note(loaded.samples.size() > 1, Fact::SeveralSamplesInARow);
    const int ranks = plan_.mesh.ranks_per_replica();
    int ranks_with_image = 0;
    for (int rank = replica * ranks; rank < (replica + 1) * ranks; ++rank) {
      MicrobatchOptions options{
          .dtype = at::kDouble, .vision_dtype = at::kDouble, .audio_dtype = at::kDouble};
      options.images_both_ways = plan_.options.llm.image_attention == "bidirectional";
      options.replica = plan_.replica_layout(rank);
      const Microbatch made = make_microbatch(loaded, plan_.model, options);
      if (loaded.samples.empty()) continue;
      ranks_with_image += look_at(made);
      note(options.images_both_ways && made.items.images > 0, Fact::BothWays);
    }
    note(loaded.items.images == 1 && ranks_with_image > 1, Fact::ImageOnTwoRanks);
    return loaded.items.images;
  }

  /// Whether this is the first tp rank of a cp rank with a part of an image.
  bool look_at(const Microbatch& made) {
    const bool has_tokens = made.token_ids.numel() > 0;
    note(!has_tokens, Fact::RankWithoutTokens);
    note(made.items.images > 0 && made.images.items_here == 0, Fact::RankWithoutItems);
    // Of a slice nothing can be told about the other tp ranks' rows.
    const bool has_image =
        made.images.placeholder_rows.defined() && made.images.placeholder_rows.numel() > 0;
    note(made.text_shares.empty() && has_tokens && made.items.images > 0 && !has_image,
         Fact::RankWithoutImage);
    return made.counts && made.text_shares.empty() && has_image;
  }

  TinyRunOptions run_;
  Plan plan_;
  MemoryDataset dataset_;
  std::set<Fact> found_;
};

std::set<Fact> facts_of(const std::string& name) {
  std::set<Fact> all;
  for (const GridScenario& scenario : grid_scenarios())
    if (scenario.name == name)
      for (const Grid& grid : grids_for(scenario, &scenario == &grid_scenarios().front())) {
        const Facts facts(scenario, grid);
        all.insert(facts.found().begin(), facts.found().end());
      }
  return all;
}

struct Claim {
  const char* scenario;
  std::vector<Fact> facts;
};

TEST(GridScenarios, AreWhatTheySay) {
  const Claim claims[] = {
      {"packed rows with several images",
       {Fact::SeveralSamplesInARow, Fact::StepWithImages, Fact::RankWithoutImage,
        Fact::RankWithoutItems}},
      {"an image on two ranks", {Fact::ImageOnTwoRanks}},
      {"rows shorter than ranks x block", {Fact::RankWithoutTokens, Fact::RankWithoutImage}},
      {"steps without images", {Fact::StepWithoutImages, Fact::StepWithImages}},
      {"no images at all, tied", {Fact::StepWithoutImages}},
      {"one KV head, tied, frozen vision", {Fact::RepeatedKvHeads}},
      {"two KV heads on four ranks, with biases", {Fact::RepeatedKvHeads}},
      {"images that see all of themselves", {Fact::BothWays}},
      {"images that see all of themselves, class token, everything in one row",
       {Fact::BothWays, Fact::SeveralSamplesInARow}},
      {"a vocabulary that tp does not divide", {Fact::PaddedVocabulary}},
      {"a tied one", {Fact::PaddedVocabulary}},
      {"several microbatches, reduced once", {Fact::SeveralMicrobatches}},
      {"several microbatches, every other unit computed again", {Fact::SeveralMicrobatches}},
  };
  for (const Claim& claim : claims) {
    const std::set<Fact> found = facts_of(claim.scenario);
    for (Fact fact : claim.facts)
      EXPECT_TRUE(found.contains(fact)) << claim.scenario << ": " << static_cast<int>(fact);
  }
}

TEST(GridScenarios, ConcernGridsOfEveryKind) {
  for (const GridScenario& scenario : grid_scenarios()) {
    EXPECT_GE(grids_for(scenario, false).size(), 3) << scenario.name;
    for (const Grid& grid : grids_for(scenario, true))
      EXPECT_NO_THROW(make_plan(run_of(scenario, grid).deck, scenario.config(grid), grid.ranks()))
          << scenario.name << "; " << grid.name();
  }
}

}  // namespace
}  // namespace zea::testing
