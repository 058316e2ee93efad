// SPDX-License-Identifier: Apache-2.0
// The scenarios of the grids have the facts that they claim: on paper, every rank's part of every
// microbatch of their three steps, on the very grids that they are tried on; the first one, which
// differs by grids alone, on all that the long tests try.
#include "batch/make_microbatch.hpp"
#include "support/grid_scenarios.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "data/sampler.hpp"
#include "layout/item_row.hpp"
#include "train/training_data.hpp"

namespace zea::testing::test_grid_scenarios {
namespace {

/// Facts about a scenario on one of its grids.
enum class Fact {
  ImageOnTwoRanks,      ///< the features of one image lie on several cp ranks
  ImageSeenOnTwoRanks,  ///< of an image whose features all see each other
  ImageMadeOnTwoRanks,  ///< one image lies on several cp ranks of the encoder
  UnequalTokens,        ///< a cp rank has 2 tokens or more less than another
  RankWithoutImage,     ///< a cp rank has tokens, but none of the images of its microbatch
  RankWithoutTokens,    ///< a cp rank has no token of a microbatch
  RankWithoutItems,     ///< a rank has no image to encode where others have
  StepWithoutImages,    ///< nobody has one
  StepWithImages,
  SeveralMicrobatches,
  SeveralSamplesInARow,
  BidirectionalLayers,
  PaddedVocabulary,
  RepeatedKvHeads,
  ImagesOfSeveralSizes,
  AudioInVideoOnTwoRanks,  ///< a video and its audio track, interleaved, lie on several cp ranks
};

/// Returns, for each token, the first token of its video if that has an interleaved audio track,
/// else -1.
std::vector<int64_t> videos_with_audio(const std::vector<MaskWord>& words) {
  std::vector<int64_t> videos(words.size(), -1);
  const auto modality = [&](size_t token) { return word_modality(words[token]); };
  for (size_t begin = 0, end = 0; begin < words.size(); begin = std::max(begin + 1, end)) {
    bool is_after_audio = false, is_interleaved = false;
    for (end = begin; end < words.size() && modality(end) != kModalityText; ++end) {
      is_interleaved |= is_after_audio && modality(end) == kModalityImage;
      is_after_audio |= modality(end) == kModalityAudio;
    }
    if (is_interleaved) std::fill(&videos[begin], &videos[end], static_cast<int64_t>(begin));
  }
  return videos;
}

class Facts {
 public:
  Facts(const GridScenario& scenario, const Grid& grid)
      : run_(run_of(scenario, grid)),
        plan_(plan_of(run_, grid.ranks())),
        dataset_(dataset_of(scenario, grid)) {
    const int64_t vocabulary = plan_.model.decoder.vocabulary;
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
    note(part.samples.size() > 1, Fact::SeveralSamplesInARow);
    if (part.samples.empty()) return 0;
    const int ranks = plan_.mesh.ranks_per_replica();
    std::map<int, int64_t> tokens;  // of each cp rank
    for (int rank = replica * ranks; rank < (replica + 1) * ranks; ++rank) {
      MicrobatchOptions options{.dtype = at::kDouble};
      options.bidirectional_images = plan_.bidirectional_images;
      options.replica = plan_.replica_layout(rank);
      const Microbatch made = make_microbatch(
          load_microbatch(dataset_, loading_on(plan_, rank), part.samples), plan_.model, options);
      look_at(made);
      look_at_images(made, options);
      tokens[plan_.mesh.coordinate(rank, "llm").cp] = made.token_ids.numel();
    }
    const auto [least, most] =
        std::minmax_element(tokens.begin(), tokens.end(),
                            [](const auto& a, const auto& b) { return a.second < b.second; });
    note(most->second - least->second >= 2, Fact::UnequalTokens);
    return part.items.of(0);
  }

  void look_at(const Microbatch& made) {
    const EncoderPart& images = made.encoders.empty() ? EncoderPart() : made.encoders[0];
    const bool has_tokens = made.token_ids.numel() > 0;
    note(!has_tokens, Fact::RankWithoutTokens);
    note(made.items.of(0) > 0 && images.local_items == 0, Fact::RankWithoutItems);
    // A slice does not show the other tp ranks' rows.
    const bool has_image = images.placeholder_rows.defined() && images.placeholder_rows.numel() > 0;
    note(made.text_shares.empty() && has_tokens && made.items.of(0) > 0 && !has_image,
         Fact::RankWithoutImage);
  }

  /// On how many cp ranks each image of the microbatch lies, in the text and in this rank's part of
  /// the encoder.
  void look_at_images(const Microbatch& made, const MicrobatchOptions& options) {
    if (made.items.of(0) == 0) return;
    const bool both_ways = options.bidirectional_images != BidirectionalLayers::None;
    note(both_ways, Fact::BidirectionalLayers);
    const ReplicaLayout& replica = options.replica;
    const int64_t window = plan_.model.decoder.block.widest_attention().window;
    const TokenLayout text(
        visible_text(made.words, is_bidirectional(options.bidirectional_images, window), window),
        replica.sharding("llm"), replica.grid("llm").tp);
    EXPECT_EQ(count_tokens(text.owned()[replica.coordinate(replica.rank, "llm").cp]),
              made.token_ids.numel());
    const bool shared = shares_an_item(text.owned(), [&](int64_t token) {
      return word_modality(made.words[token]) == kModalityImage ? made.words[token] : -1;
    });
    note(shared, Fact::ImageOnTwoRanks);
    note(shared && both_ways, Fact::ImageSeenOnTwoRanks);
    const std::vector<int64_t> videos = videos_with_audio(made.words);
    note(shares_an_item(text.owned(), [&](int64_t token) { return videos[token]; }),
         Fact::AudioInVideoOnTwoRanks);
    const EncoderSpec& vision = plan_.model.encoders[0];
    const std::vector<ItemShape> all = made.items.shapes(0, vision);
    note(std::ranges::any_of(all, [&](const ItemShape& shape) { return shape != all.front(); }),
         Fact::ImagesOfSeveralSizes);
    const int place = replica.coordinate(replica.rank, "vision").encoder_dp;
    const std::vector<int64_t> items =
        distribute_items(all, plan_.model, 0, replica.grid("vision").encoder_dp)[place];
    const ItemRow row(all, items, "vision", replica);
    note(shares_an_item(row.layout().owned(),
                        [&](int64_t token) { return static_cast<int64_t>(row.item_of(token)); }),
         Fact::ImageMadeOnTwoRanks);
  }

  /// Whether tokens of one item, which `item_of` tells by numbers (-1: of none), are on two ranks.
  template <class ItemOf>
  static bool shares_an_item(const std::vector<TokenRuns>& owned, ItemOf item_of) {
    std::map<int64_t, int> owner;
    for (int rank = 0; rank < static_cast<int>(owned.size()); ++rank)
      for (const TokenRange& run : owned[rank])
        for (int64_t token = run.begin; token < run.end; ++token)
          if (const int64_t item = item_of(token);
              item >= 0 && owner.try_emplace(item, rank).first->second != rank)
            return true;
    return false;
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
        Fact::RankWithoutItems, Fact::ImageMadeOnTwoRanks, Fact::UnequalTokens}},
      {"an image on two ranks", {Fact::ImageOnTwoRanks}},
      {"rows shorter than ranks x block", {Fact::RankWithoutTokens, Fact::RankWithoutImage}},
      {"steps without images", {Fact::StepWithoutImages, Fact::StepWithImages}},
      {"no images at all, tied", {Fact::StepWithoutImages}},
      {"one KV head, tied, frozen vision", {Fact::RepeatedKvHeads}},
      {"two KV heads on four ranks, with biases", {Fact::RepeatedKvHeads}},
      {"images that see all of themselves",
       {Fact::BidirectionalLayers, Fact::ImageSeenOnTwoRanks, Fact::ImageMadeOnTwoRanks}},
      {"images that see all of themselves, class token, everything in one row",
       {Fact::BidirectionalLayers, Fact::SeveralSamplesInARow, Fact::ImageSeenOnTwoRanks}},
      {"images of any size, four patches a feature, windows in every other layer",
       {Fact::ImagesOfSeveralSizes, Fact::SeveralSamplesInARow, Fact::SeveralMicrobatches,
        Fact::ImageMadeOnTwoRanks, Fact::ImageOnTwoRanks}},
      {"images of any size that see all of themselves, frozen vision",
       {Fact::ImagesOfSeveralSizes, Fact::BidirectionalLayers, Fact::ImageSeenOnTwoRanks}},
      {"a vocabulary that tp does not divide", {Fact::PaddedVocabulary}},
      {"a tied one", {Fact::PaddedVocabulary}},
      {"several microbatches, reduced once", {Fact::SeveralMicrobatches}},
      {"several microbatches, every other unit recomputed", {Fact::SeveralMicrobatches}},
      {"Qwen2.5-Omni, images, videos and sound in chunks", {Fact::AudioInVideoOnTwoRanks}},
      {"Qwen3-Omni, experts, images, videos and sound in chunks", {Fact::AudioInVideoOnTwoRanks}},
  };
  for (const Claim& claim : claims) {
    const std::set<Fact> found = facts_of(claim.scenario);
    for (Fact fact : claim.facts)
      EXPECT_TRUE(found.contains(fact)) << claim.scenario << ": " << static_cast<int>(fact);
  }
}

TEST(GridScenarios, ConcernGridsOfEveryKind) {
  std::set<std::string> tried;
  for (const GridScenario& scenario : grid_scenarios()) {
    EXPECT_GE(grids_for(scenario, false).size(), 2) << scenario.name;
    for (const Grid& grid : grids_for(scenario, false)) tried.insert(grid.name());
    for (const Grid& grid : grids_for(scenario, true))
      EXPECT_NO_THROW(plan_of(run_of(scenario, grid), grid.ranks()))
          << scenario.name << "; " << grid.name();
  }
  for (const Grid& grid : grids()) EXPECT_TRUE(tried.contains(grid.name())) << grid.name();
}

}  // namespace
}  // namespace zea::testing::test_grid_scenarios
