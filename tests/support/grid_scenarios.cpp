// SPDX-License-Identifier: Apache-2.0
#include "support/grid_scenarios.hpp"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/error.hpp"
#include "support/made_up_models.hpp"
#include "support/tiny_qwen2_vl.hpp"

namespace zea::testing {
namespace {

constexpr int64_t kSamples = 16;

bool shards(const Grid& grid) {
  const auto is_gathered = [](const char* strategy) { return std::string(strategy) != "no_shard"; };
  return is_gathered(grid.strategy) && (!grid.vision || is_gathered(grid.vision_strategy));
}

void refine(Options& deck, void (*change)(ModuleMeshOptions&)) {
  change(deck.meshes["vision"]);
  change(deck.meshes["audio"]);
  change(deck.meshes["llm"]);
}

/// An InternVL whose tower has norms of all queries and of all keys.
std::string normed_internvl_config(const TinyLlava& model) {
  const nlohmann::json text = nlohmann::json::parse(tiny_llava_config(model)).at("text_config");
  const nlohmann::json vision{{"hidden_size", model.vision_hidden},
                              {"intermediate_size", 24},
                              {"num_hidden_layers", 2},
                              {"num_attention_heads", model.vision_heads},
                              {"image_size", 16},
                              {"patch_size", 4},
                              {"use_qk_norm", true}};
  return nlohmann::json{{"model_type", "internvl"},
                        {"image_token_id", 3},
                        {"text_config", text},
                        {"vision_config", vision}}
      .dump();
}

void cut_into_two(ModelSpec& model) {
  model.encoders.at(0).patches().limit_tiles({.most = 2});
}

/// The first 14 samples, which two steps of 7 take in order, have no image.
std::vector<int> images_from_the_third_step_on() {
  std::vector<int> images(kSamples, 1);
  std::fill_n(images.begin(), 14, 0);
  return images;
}

const GridScenario kScenarios[] = {
    {.name = "packed rows with several images", .seed = 1},
    {"an image on two ranks",
     {.image_size = 16},
     {1},
     [](Options& deck) {
       deck.data.packing = false;
       deck.schedule.global_batch = 4;
     },
     [](const Grid& grid) { return grid.llm.cp > 1; }},
    {"rows shorter than ranks x block",
     {},
     {0, 1},
     [](Options& deck) {
       deck.data.packing = false;
       deck.schedule.global_batch = 4;
     },
     [](const Grid& grid) { return grid.llm.cp == 4; },
     false,
     3},  // one of its samples has fewer tokens than there are ranks
    {"steps without images",
     {},
     images_from_the_third_step_on(),
     [](Options& deck) { deck.data.shuffle = false; }},
    {"no images at all, tied", {.tied = true}, {0}},
    {"one KV head, tied, frozen vision",
     {.tied = true, .kv_heads = 1},
     {1, 0, 0, 0, 0},
     [](Options& deck) {
       deck.encoders["vision"].train = deck.encoders["vision"].train_projector = false;
     },
     [](const Grid& grid) { return grid.llm.tp > 1; }},
    {"two KV heads on four ranks, with biases",
     {.kv_heads = 2, .biases = true},
     {1, 0, 2},
     nullptr,
     [](const Grid& grid) { return grid.llm.tp == 4; }},
    {"all KV heads, no projector bias",
     {.kv_heads = 4, .projector_bias = false},
     {0, 1},
     nullptr,
     [](const Grid& grid) { return grid.heads == 4; }},
    {"frozen vision and llm, trained projector",
     {},
     {1, 1, 0},
     [](Options& deck) { deck.encoders["vision"].train = deck.llm.train = false; }},
    {"frozen llm", {}, {1, 0, 1}, [](Options& deck) { deck.llm.train = false; }},
    {"images that see all of themselves",
     {.image_size = 12},
     {1, 0, 2},
     [](Options& deck) { deck.llm.image_attention = "bidirectional"; }},
    {"images that see all of themselves, class token, everything in one row",
     {.select = "full", .image_size = 12},
     {2, 1},
     [](Options& deck) {
       deck.llm.image_attention = "bidirectional";
       deck.data.row_tokens = 400;
     }},
    {"a vocabulary that tp does not divide",
     {.vocabulary = 37},
     {1, 0, 2},
     nullptr,
     [](const Grid& grid) { return grid.llm.tp > 1; }},
    {"a tied one",
     {.tied = true, .vocabulary = 41},
     {1, 0},
     nullptr,
     [](const Grid& grid) { return grid.llm.tp > 1; }},
    {"every unit recomputed",
     {},
     {1, 0, 2},
     [](Options& deck) { deck.model.activation_checkpointing = AutoOption::of_count(1); }},
    {"selective recomputation",
     {.kv_heads = 1},
     {1, 0, 2},
     [](Options& deck) { deck.model.activation_checkpointing = AutoOption::selective(); }},
    {"several microbatches, every other unit recomputed",
     {.kv_heads = 1},
     {1, 0, 2},
     [](Options& deck) {
       deck.data.row_tokens = 24;
       deck.model.activation_checkpointing = AutoOption::of_count(2);
     }},
    {"several microbatches, reduced once",
     {},
     {1, 0, 2},
     [](Options& deck) {
       deck.data.row_tokens = 24;
       refine(deck, [](ModuleMeshOptions& mesh) { mesh.sync_grad_accum = AutoOption::of(false); });
     }},
    {"several taps, two units wrapped, a buffer for each parameter",
     {.feature_layer = "[0, -1, 1]"},
     {0, 2},
     [](Options& deck) {
       refine(deck, [](ModuleMeshOptions& mesh) {
         mesh.wrap_units = 2;
         mesh.flatten_parameters = false;
       });
     },
     shards},
    {"images and sound", {.audio = true}, {1, 0, 2, 0}},
    {"images and sound on grids of their own",
     {.audio = true},
     {1, 0, 2, 0},
     nullptr,
     [](const Grid& grid) { return grid.audio.has_value(); }},
    {"sound in two packed rows, no image",
     {.vision = false, .audio = true},
     {0},
     [](Options& deck) {
       deck.data.rows_per_microbatch = 2;
       deck.data.row_tokens = 40;
     }},
    {"some sound, frozen audio encoder",
     {.audio = true},
     {0, 1},
     [](Options& deck) {
       deck.encoders["audio"].train = false;
       deck.model.activation_checkpointing = AutoOption::of_count(1);
     },
     nullptr,
     false,
     5,
     {0, 0, 0, 1}},
    {"images that see all of themselves, sound that does not",
     {.audio = true},
     {1},
     [](Options& deck) { deck.llm.image_attention = "bidirectional"; }},
    {"images of any size, four patches a feature, windows in every other layer",
     {.image_size = 24, .siglip = true},
     {1, 0, 2},
     [](Options& deck) { deck.data.row_tokens = 40; },
     nullptr,
     false,
     5,
     {},
     see_image_windows},
    {"images of any size that see all of themselves, frozen vision",
     {.image_size = 24, .siglip = true},
     {2, 1},
     [](Options& deck) {
       deck.llm.image_attention = "bidirectional";
       deck.encoders["vision"].train = false;
       deck.model.activation_checkpointing = AutoOption::of_count(1);
     },
     nullptr,
     false,
     5,
     {},
     merge_images_of_any_size},
    {"images that fill a number of patches, positions of a table laid over them",
     {.image_size = 24, .siglip = true},
     {2, 0, 1},
     [](Options& deck) { deck.data.row_tokens = 40; },
     nullptr,
     false,
     5,
     {},
     fill_patches},
    {"images cut into tiles, four patches a feature",
     {},
     {1, 0, 2},
     [](Options& deck) { deck.data.row_tokens = 40; },
     nullptr,
     false,
     5,
     {},
     cut_into_tiles},
    {"Pixtral's encoder, images of any size", {.image_size = 8, .pixtral = true}, {1, 0, 2}},
    {"Mistral 3, images of any size",
     {.image_size = 24, .pixtral = true, .merges = true},
     {2, 0, 1},
     [](Options& deck) { deck.data.row_tokens = 40; }},
    {"two encoders of images, one of any size",
     {.image_size = 16, .siglip = true},
     {1, 0, 1},
     [](Options& deck) { deck.meshes[kSecondEncoder] = deck.meshes["vision"]; },
     nullptr,
     false,
     5,
     {},
     add_second_image_encoder},
    {.name = "windows in every other layer, with scores of their own",
     .concerns = [](const Grid& grid) { return grid.llm.cp > 1; },
     .remake = mix_windows},
    {"windows, images that see all of themselves",
     {.kv_heads = 1, .image_size = 12},
     {1, 0, 2},
     [](Options& deck) { deck.llm.image_attention = "bidirectional"; },
     [](const Grid& grid) { return grid.llm.cp > 1; },
     false,
     5,
     {},
     see_windows},
    {"Gemma 3",
     {.tied = true, .image_size = 24, .siglip = true, .gemma3 = true},
     {1, 0, 2},
     nullptr,
     [](const Grid& grid) { return grid.llm.cp > 1; }},
    {"Gemma 3, frozen tower, every unit recomputed",
     {.kv_heads = 1, .image_size = 16, .siglip = true, .gemma3 = true},
     {2, 1},
     [](Options& deck) {
       deck.encoders["vision"].train = false;
       deck.model.activation_checkpointing = AutoOption::of_count(1);
     }},
};

/// Adapters, GPT-2, and a tower with norms across heads.
const GridScenario kFurtherScenarios[] = {
    {"adapters in the language model, trained encoder",
     {.kv_heads = 2, .biases = true},
     {1, 0, 2},
     [](Options& deck) {
       deck.llm.lora = {.targets = {"q_proj", "k_proj", "v_proj", "o_proj", "*.up_proj"},
                        .rank = 3,
                        .dropout = 0.3};
     },
     [](const Grid& grid) { return grid.llm.tp > 1; }},
    {"adapters in encoder, projector and language model, every unit recomputed",
     {},
     {0, 1, 2},
     [](Options& deck) {
       deck.llm.lora = {.targets = {"*.layers.1.*"},
                        .rank = 2,
                        .alpha = 3,
                        .rank_pattern = {"mlp.* = 4", "down_proj = 1"},
                        .alpha_pattern = {"self_attn.* = 5"},
                        .dropout = 0.2,
                        .rslora = true};
       deck.encoders["vision"].lora = {.targets = {"*"}, .rank = 4, .dropout = 0.4};
       deck.model.activation_checkpointing = AutoOption::of_count(1);
     }},
    {"GPT-2, adapters",
     {},
     {0},
     [](Options& deck) {
       deck.llm.lora = {.targets = {"c_attn", "mlp.*"}, .rank = 3, .dropout = 0.3};
       deck.data.row_tokens = 40;
     },
     [](const Grid& grid) { return grid.llm.tp > 1 || grid.llm.cp > 1; },
     true},
    {"GPT-2",
     {},
     {0},
     [](Options& deck) {
       deck.llm.dropout = 0.2;
       deck.data.row_tokens = 40;
     },
     [](const Grid& grid) { return grid.llm.tp > 1 || grid.llm.cp > 1; },
     true},
    {"InternVL, norms of all queries and of all keys, every unit recomputed",
     {},
     {1, 0, 2},
     [](Options& deck) { deck.model.activation_checkpointing = AutoOption::of_count(1); },
     [](const Grid& grid) { return grid.vision.value_or(grid.llm).tp > 1; },
     false,
     5,
     {},
     cut_into_two,
     normed_internvl_config},
};

bool concerns(const GridScenario& scenario, const Grid& grid) {
  return (!scenario.concerns || scenario.concerns(grid)) && (!scenario.gpt2 || grid.heads == 4);
}

/// A few grids of each scenario, from all over the table, and those that fewest others have.
std::vector<std::vector<Grid>> shared_out() {
  constexpr size_t kOfTheFirst = 8, kOfOthers = 2;
  std::vector<int> times(grids().size(), 0);
  std::vector<std::vector<Grid>> of_scenarios;
  for (const GridScenario& scenario : grid_scenarios()) {
    const size_t few = of_scenarios.empty() ? kOfTheFirst : kOfOthers;
    std::vector<Grid>& taken = of_scenarios.emplace_back();
    std::vector<size_t> left;
    for (size_t g = 0; g < grids().size(); ++g)
      if (concerns(scenario, grids()[g])) left.push_back(g);
    for (size_t n = 0; n < few && !left.empty(); ++n) {
      std::ranges::stable_sort(left, {}, [&](size_t g) { return times[g]; });
      if (n == 0 && scenario.needs) {
        std::ranges::stable_partition(left, [&](size_t g) { return scenario.needs(grids()[g]); });
        ZEA_ASSERT(scenario.needs(grids()[left[0]]));
      }
      const auto rarest =
          std::ranges::count(left, times[left[0]], [&](size_t g) { return times[g]; });
      const auto next = left.begin() + static_cast<int64_t>(n) * rarest / static_cast<int64_t>(few);
      ++times[*next];
      taken.push_back(grids()[*next]);
      left.erase(next);
    }
  }
  return of_scenarios;
}

}  // namespace

const std::vector<GridScenario>& grid_scenarios() {
  static const std::vector<GridScenario> all = [] {
    std::vector<GridScenario> scenarios(std::begin(kScenarios), std::end(kScenarios));
    scenarios.insert(scenarios.end(), decoder_scenarios().begin(), decoder_scenarios().end());
    scenarios.insert(scenarios.end(), std::begin(kFurtherScenarios), std::end(kFurtherScenarios));
    scenarios.insert(scenarios.end(), scan_scenarios().begin(), scan_scenarios().end());
    return scenarios;
  }();
  return all;
}

std::string GridScenario::config(const Grid& grid) const {
  const TinyLlava sized = model_for(grid, model);
  if (other_config) return other_config(sized);
  return gpt2 ? tiny_gpt2_config() : tiny_llava_config(sized);
}

std::vector<Grid> grids_for(const GridScenario& scenario, bool all) {
  if (!all) {
    static const std::vector<std::vector<Grid>> few = shared_out();
    return few.at(&scenario - grid_scenarios().data());
  }
  std::vector<Grid> concerned;
  std::ranges::copy_if(grids(), std::back_inserter(concerned),
                       [&](const Grid& grid) { return concerns(scenario, grid); });
  return concerned;
}

MemoryDataset dataset_of(const GridScenario& scenario, const Grid& grid, uint64_t others) {
  ModelSpec model = make_model_spec(scenario.config(grid));
  if (scenario.remake) scenario.remake(model);
  return make_tiny_dataset(model, kSamples, scenario.images, scenario.seed + others,
                           scenario.clips);
}

TinyRunOptions run_of(const GridScenario& scenario, const Grid& grid) {
  TinyRunOptions run;
  run.config_json = scenario.config(grid);
  run.remake = scenario.remake;
  run.steps = 3;
  run.deck.precision.preset = "fp64";
  run.deck.data.row_tokens = 64;
  OptimOptions& optim = run.deck.optim;
  optim.lr = 1e-2;
  optim.warmup_steps = 2;
  optim.weight_decay = 0.1;
  optim.clip_norm = 0.5;
  optim.weight_decays = {"*.bias = 0.2"};
  if (!scenario.gpt2)
    optim.lr_factors = {scenario.model.vision ? "vision = 0.5" : "audio = 0.5",
                        "*.layers.1.* = 0.7"};
  run.deck.schedule = {.steps = run.steps, .global_batch = 7};
  apply(grid, run.deck);
  if (scenario.set) scenario.set(run.deck);
  if (scenario.gpt2 || !scenario.model.vision) run.deck.meshes["vision"] = {};
  if (scenario.gpt2 || !scenario.model.audio) run.deck.meshes["audio"] = {};
  return run;
}

Grid one_rank_like(const Grid& grid) {
  return {.heads = grid.heads};
}

}  // namespace zea::testing
