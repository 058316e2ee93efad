// SPDX-License-Identifier: Apache-2.0
// Memory under full_shard, by the ledger of the buffers: a rank holds its share of everything that
// is owned, and two units' worth of gathered parameters and of gradients not yet reduced. A plan
// predicts the peak of all tensors of a step.
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "estimate/fitting_plan.hpp"
#include "estimate/memory_estimate.hpp"
#include "support/measured_models.hpp"
#include "support/mpi_main.hpp"
#include "support/predicted_memory.hpp"
#include "support/shared_directory.hpp"
#include "support/tiny_llava.hpp"
#include "support/tiny_run.hpp"

namespace zea::testing::test_memory {
namespace {

/// Wide enough that alignment and padding do not count.
std::string wide_config() {
  nlohmann::json config = nlohmann::json::parse(tiny_llava_config({.layers = 3}));
  config["text_config"]["hidden_size"] = 96;
  config["text_config"]["intermediate_size"] = 256;
  config["text_config"]["head_dim"] = 24;
  config["vision_config"]["hidden_size"] = 64;
  config["vision_config"]["intermediate_size"] = 192;
  return config.dump();
}

/// Sum of the two largest units, in bytes of `element_bytes` per element.
int64_t two_largest_units(const Plan& plan, int64_t element_bytes) {
  std::vector<int64_t> units(plan.model.units.size(), 0);
  for (const FlatBuffer& buffer : plan.buffers)
    for (int unit : buffer.units) units[unit] += buffer.elements * element_bytes;
  std::sort(units.rbegin(), units.rend());
  return units[0] + units[1];
}

TEST(Memory, FullShardHoldsItsShareAndTwoUnits) {
  const Communicator world = testing::world().communicator();
  ASSERT_EQ(world.size(), 4);
  for (const char* preset : {"fp32", "bf16"}) {
    TinyRunOptions run;
    run.config_json = wide_config();
    run.steps = 2;
    run.deck.precision.preset = preset;
    run.deck.data.row_tokens = 48;
    run.deck.schedule = {.steps = 2, .global_batch = 9};
    const Plan plan = make_plan(run.deck, run.config_json, 4);
    const MemoryDataset dataset = make_tiny_dataset(plan.model, 12, {1, 0, 2}, 3);
    const TinyResult got = run_tiny(world, make_mpi_collectives, dataset, run);

    const int64_t param = static_cast<int64_t>(element_bytes(plan.precision.param));
    const int64_t master = static_cast<int64_t>(element_bytes(plan.precision.master));
    const int64_t parameters = plan.model.num_parameters();
    // Masters, two moments and the gradient, each a quarter; and the parameters where they are of
    // another type.
    const int64_t owned = parameters * ((param == master ? 0 : param) + 4 * master) / 4;
    const int64_t bound = owned + two_largest_units(plan, param) + two_largest_units(plan, master);
    EXPECT_LE(got.peak_bytes, bound) << preset;
    EXPECT_GE(got.peak_bytes, parameters * 3 * master / 4) << preset << ": the ledger must count";
  }
}

/// Neither masters nor a second copy: a frozen model takes only its compute type.
TEST(Memory, FrozenParametersTakeTheirTypeOnce) {
  const Communicator world = testing::world().communicator();
  for (const bool shards : {false, true}) {
    TinyRunOptions run;
    run.config_json = wide_config();
    run.deck.precision.preset = "bf16";
    run.deck.encoders["vision"].train = run.deck.llm.train = false;
    if (!shards) run.deck.meshes["vision"].strategy = run.deck.meshes["llm"].strategy = "no_shard";
    const Plan plan = make_plan(run.deck, run.config_json, 4);
    // Trainable parameters have masters, two moments, the gradient and the copy that units read; a
    // parameter that no unit reads (the encoder's last block) is kept as in files.
    int64_t owned = 0;
    for (const ParamSpec& param : plan.model.params)
      owned += num_elements(param.shape) * (param.trainable ? 4 * 4 + 2 : param.used ? 2 : 4);
    owned /= shards ? 4 : 1;
    const MemoryDataset dataset = make_tiny_dataset(plan.model, 12, {1, 0, 2}, 3);

    const TinyResult got = run_tiny(world, make_mpi_collectives, dataset, run);

    const int64_t gathered = shards ? two_largest_units(plan, 2) + two_largest_units(plan, 4) : 0;
    EXPECT_LE(static_cast<double>(got.peak_bytes), 1.02 * static_cast<double>(owned + gathered))
        << shards;
    EXPECT_GE(got.peak_bytes, owned) << shards;
    const MemoryEstimate told = estimate_memory(plan, world.rank(), {full_microbatch(plan)});
    EXPECT_NEAR(static_cast<double>(told.parameters + told.states + told.gradients),
                static_cast<double>(owned), 0.02 * static_cast<double>(owned));
  }
}

/// A layout: settings of the deck other than the size.
struct Layout {
  const char* name;
  void (*set)(Options&);
};

const Layout kLayouts[] = {
    {"no_shard",
     [](Options& o) { o.meshes["vision"].strategy = o.meshes["llm"].strategy = "no_shard"; }},
    {"full_shard", [](Options&) {}},
    {"shard_grad_op",
     [](Options& o) { o.meshes["vision"].strategy = o.meshes["llm"].strategy = "shard_grad_op"; }},
    {"hybrid_shard",
     [](Options& o) {
       o.mesh.dp_replicate = 2;
       o.meshes["vision"].strategy = o.meshes["llm"].strategy = "hybrid_shard";
     }},
    {"mixed", [](Options& o) { o.meshes["vision"].strategy = "no_shard"; }},
    {"checkpointing",
     [](Options& o) { o.model.activation_checkpointing = AutoOption::of_count(1); }},
    {"checkpointing every second",
     [](Options& o) { o.model.activation_checkpointing = AutoOption::of_count(2); }},
    {"selective", [](Options& o) { o.model.activation_checkpointing = AutoOption::selective(); }},
    {"accumulation", [](Options& o) { o.data.row_tokens /= 3; }},
    {"bf16", [](Options& o) { o.precision.preset = "bf16"; }},
    // GEMM packing buffers are almost the only memory in addition to a unit's own tensors.
    {"bf16, checkpointing",
     [](Options& o) {
       o.precision.preset = "bf16";
       o.model.activation_checkpointing = AutoOption::of_count(1);
     }},
    {"bf16, frozen but for the projector",
     [](Options& o) {
       o.precision.preset = "bf16";
       o.encoders["vision"].train = o.llm.train = false;
     }},
    {"adapters of both modules",
     [](Options& o) {
       o.llm.lora.targets = {"q_proj", "v_proj", "down_proj"};
       o.llm.lora.rank = 16;
       o.encoders["vision"].lora.targets = {"out_proj", "fc1"};
     }},
    {"dropout, also of adapters, bf16",
     [](Options& o) {
       o.precision.preset = "bf16";
       o.llm.lora.targets = {"q_proj", "o_proj", "up_proj"};
       o.llm.dropout = o.llm.lora.dropout = 0.1;
       o.encoders["vision"].train = o.encoders["vision"].train_projector = false;
     }},
    {"checkpointing as memory asks for",
     [](Options& o) { o.model.activation_checkpointing = AutoOption(); }},
    {"features of frozen vision kept",
     [](Options& o) {
       o.encoders["vision"].train = false;
       o.data.cache_features = "kept";
     }},
};

/// Grids, whose attention and traffic between ranks take memory that is declared less finely.
const Layout kGrids[] = {
    {"tp 2", [](Options& o) { o.meshes["llm"].tp = o.meshes["vision"].tp = 2; }},
    {"tp 2, every rank all tokens",
     [](Options& o) {
       o.meshes["llm"].tp = 2;
       o.meshes["llm"].sequence_parallel = AutoOption::of(false);
     }},
    {"tp 2, rows in 4 chunks",
     [](Options& o) {
       o.meshes["llm"].tp = o.meshes["vision"].tp = 2;
       o.meshes["llm"].tp_chunks = o.meshes["vision"].tp_chunks = 4;
     }},
    {"cp 2, gathered", [](Options& o) { o.meshes["llm"].cp = 2; }},
    {"cp 4, ring",
     [](Options& o) {
       o.meshes["llm"].cp = 4;
       o.meshes["llm"].cp_mode = "ring";
     }},
    {"tp 2 x cp 2, ulysses, bf16",
     [](Options& o) {
       o.precision.preset = "bf16";
       o.meshes["llm"].tp = o.meshes["llm"].cp = 2;
       o.meshes["llm"].cp_mode = "ulysses";
     }},
};

/// Pipelines of four ranks, each of which is compared with its own prediction.
const Layout kPipelines[] = {
    {"pp 4", [](Options& o) { o.meshes["llm"].pp = 4; }},
    {"pp 2, zero_bubble, two replicas",
     [](Options& o) {
       o.meshes["llm"].pp = 2;
       o.mesh.schedule = "zero_bubble";
     }},
    {"pp 2, gathered for each use, two replicas",
     [](Options& o) {
       o.meshes["llm"].pp = 2;
       for (const char* module : {"vision", "llm"})
         o.meshes[module].reshard_after_forward = AutoOption::of(true);
     }},
    {"pp 2, gathered for each use, summed once a step, two replicas",
     [](Options& o) {
       o.meshes["llm"].pp = 2;
       for (const char* module : {"vision", "llm"}) {
         o.meshes[module].reshard_after_forward = AutoOption::of(true);
         o.meshes[module].sync_grad_accum = AutoOption::of(false);
       }
     }},
    {"pp 2, gathered once a step, summed each time, two replicas",
     [](Options& o) {
       o.meshes["llm"].pp = 2;
       for (const char* module : {"vision", "llm"}) {
         o.meshes[module].reshard_after_forward = AutoOption::of(false);
         o.meshes[module].sync_grad_accum = AutoOption::of(true);
       }
     }},
    {"vision apart on two ranks",
     [](Options& o) {
       o.mesh.placement = "disjoint";
       o.meshes["vision"].encoder_dp = o.meshes["llm"].pp = 2;
     }},
};

/// Sizes with more memory for parameters, or for activations.
struct Size {
  int64_t hidden = 0, intermediate = 0, vision_hidden = 0, row_tokens = 0, batch = 0;
  std::vector<int> images;       ///< of each sample
  bool audio = false;            ///< the model has audio, too
  const char* family = nullptr;  ///< of measured_models(), in place of a LLaVA
  std::string config = {};       ///< in place of either
};

/// Returns the family's config, with as many layers as the others.
std::string family_config(const char* name) {
  nlohmann::json config = nlohmann::json::parse(measured_model(name).config);
  nlohmann::json& text = config["text_config"];
  text["num_hidden_layers"] = 3;
  if (text.contains("layer_types"))
    text["layer_types"].insert(text["layer_types"].begin(), "sliding_attention");
  for (const char* encoder : {"vision_config", "audio_config"})
    for (const char* layers : {"num_hidden_layers", "encoder_layers", "depth"})
      if (config.contains(encoder) && config[encoder].contains(layers)) config[encoder][layers] = 3;
  return config.dump();
}

std::string sized_config(const Size& size) {
  if (!size.config.empty()) return size.config;
  if (size.family != nullptr) return family_config(size.family);
  nlohmann::json config =
      nlohmann::json::parse(tiny_llava_config({.layers = 3, .audio = size.audio}));
  if (size.audio) {
    auto& audio = config["audio_config"];
    audio["d_model"] = size.vision_hidden;
    audio["encoder_ffn_dim"] = 3 * size.vision_hidden;
    audio["num_mel_bins"] = 40;
    audio["max_source_positions"] = 50;
  }
  config["text_config"]["hidden_size"] = size.hidden;
  config["text_config"]["intermediate_size"] = size.intermediate;
  config["text_config"]["head_dim"] = size.hidden / 4;
  config["vision_config"]["hidden_size"] = size.vision_hidden;
  config["vision_config"]["intermediate_size"] = 3 * size.vision_hidden;
  return config.dump();
}

const Size kSizes[] = {{224, 608, 112, 224, 44, {1, 0, 2}},
                       {88, 184, 56, 1536, 360, {1, 0, 2}},
                       {88, 184, 56, 1400, 160, {1, 0, 2}, true},
                       // Long segments, which the library's attention computes.
                       {72, 168, 56, 900, 16, {60, 0, 55}}};

/// Sets a memory limit halfway between recomputing all units and none, so that some are chosen.
void limit_memory(TinyRunOptions& run) {
  Options& deck = run.deck;
  const auto needed = [&](int every) {
    Options tried = deck;
    tried.model.activation_checkpointing = AutoOption::of_count(every);
    const Plan plan = make_plan(tried, run.config_json, 4);
    return static_cast<double>(estimate_groups(plan, predicted_microbatches(plan))[0].total());
  };
  deck.mesh.rank_memory_mib = (needed(0) + needed(1)) / 2 / (1 << 20);
  const std::vector<Recompute> chosen = make_fitting_plan(deck, run.config_json, 4).recomputed;
  ASSERT_LT(std::ranges::count(chosen, Recompute::None), std::ssize(chosen));
  ASSERT_LT(std::ranges::count(chosen, Recompute::Full), std::ssize(chosen) - 1);
  run.adjust = [chosen](Plan& plan) { plan.recomputed = chosen; };
}

double largest_of_ranks(int64_t mine) {
  int64_t largest = 0;
  MPI_Allreduce(&mine, &largest, 1, MPI_INT64_T, MPI_MAX, MPI_COMM_WORLD);
  return static_cast<double>(largest);
}

/// Expects the predicted memory of a run within `tolerance` of the peak.
void expect_predicted(const Layout& layout, const Size& size, double tolerance) {
  const Communicator world = testing::world().communicator();
  ASSERT_EQ(world.size(), 4);
  TinyRunOptions run;
  run.config_json = sized_config(size);
  run.steps = 2;
  run.deck.data.row_tokens = size.row_tokens;
  run.deck.schedule = {.steps = 2, .global_batch = size.batch};
  layout.set(run.deck);
  if (size.audio) run.deck.meshes["audio"] = run.deck.meshes["vision"];
  const SharedDirectory folder(world);
  if (!run.deck.data.cache_features.empty())
    run.deck.data.cache_features = folder / run.deck.data.cache_features;
  if (size.family != nullptr && measured_model(size.family).remake != nullptr)
    run.remake = measured_model(size.family).remake;
  if (run.deck.model.activation_checkpointing.is_auto()) limit_memory(run);
  const Plan plan = plan_of(run, 4);
  const MemoryDataset dataset = make_tiny_dataset(plan.model, 400, size.images, 3);
  const TinyResult got = run_tiny(world, make_mpi_collectives, dataset, run);

  const MemoryEstimate told = predict(plan, dataset, world.rank(), run.steps);
  // GEMM libraries need not take their scratch.
  const int64_t least = told.total() - told.scratch;
  const auto mine = static_cast<double>(got.tensor_peak_bytes);
  const double ratio = static_cast<double>(told.total()) / mine;
  // The prediction is for equal shares of a row: context parallelism gives some ranks fewer tokens,
  // which then take less; the fullest rank must fit.
  const double counted =
      plan.options.meshes["llm"].cp > 1 ? largest_of_ranks(got.tensor_peak_bytes) : mine;
  const auto text = [&] {
    const std::string of = size.family ? size.family : "hidden " + std::to_string(size.hidden);
    return std::string(layout.name) + ", " + of + ": predicted " + std::to_string(told.total()) +
           " (activations " + std::to_string(told.activations) + ", at " + told.peak_at +
           "), counted " + std::to_string(got.tensor_peak_bytes) + ", of these buffers " +
           std::to_string(got.peak_bytes);
  };
  EXPECT_GT(ratio, 1 - tolerance) << text();
  EXPECT_LT(static_cast<double>(least), counted * (1 + tolerance)) << text();
  EXPECT_LE(got.tensor_peak_bytes, predicted_without_samples(plan, dataset, run.steps)) << text();
}

TEST(Memory, PredictionIsWithinFivePercentOfThePeak) {
  for (const Size& size : kSizes)
    for (const Layout& layout : kLayouts) expect_predicted(layout, size, 0.05);
}

TEST(Memory, OfFamiliesItIsWithinFivePercent) {
  for (const char* family : {"glm4v", "kimi_k25", "qwen2_5_vl", "gemma3", "gemma4 with images",
                             "internvl", "mistral3", "clips of their own length, averaged",
                             "gemma4 with audio", "qwen2_5_omni_thinker", "qwen3_omni_moe_thinker"})
    for (const char* name : {"full_shard", "checkpointing"}) {
      const auto layout = std::ranges::find_if(
          kLayouts, [&](const Layout& one) { return one.name == std::string(name); });
      expect_predicted(
          *layout, {.row_tokens = 1400, .batch = 120, .images = {1, 0, 2}, .family = family}, 0.05);
    }
}

/// Recomputed units are chosen by comparing estimates: the estimates of sets of units must rank as
/// their measured peaks.
TEST(Memory, SetsOfRecomputedUnitsRankAsCounted) {
  const Communicator world = testing::world().communicator();
  const Size size = kSizes[1];
  TinyRunOptions run;
  run.config_json = sized_config(size);
  run.steps = 1;
  run.deck.data.row_tokens = size.row_tokens;
  run.deck.schedule = {.steps = 1, .global_batch = size.batch};
  const Plan free = plan_of(run, world.size());
  const MemoryDataset dataset = make_tiny_dataset(free.model, 400, size.images, 3);
  std::vector<std::pair<double, double>> tried;  // predicted, counted
  const size_t units = free.model.units.size();
  for (size_t first = 0; first < units; ++first)
    for (const size_t count : {size_t{1}, size_t{3}}) {
      run.adjust = [=](Plan& plan) {
        for (size_t u = first; u < std::min(first + count, units); ++u)
          if (plan.model.units[u].kind != UnitKind::Head) plan.recomputed[u] = Recompute::Full;
      };
      const TinyResult got = run_tiny(world, make_mpi_collectives, dataset, run);
      tried.emplace_back(predict(plan_of(run, world.size()), dataset, world.rank(), 1).total(),
                         got.tensor_peak_bytes);
    }
  int compared = 0;
  for (const auto& [told, counted] : tried)
    for (const auto& [other_told, other_counted] : tried) {
      if (told > 0.97 * other_told) continue;
      EXPECT_LT(counted, other_counted) << told << ", " << other_told;
      ++compared;
    }
  EXPECT_GT(compared, 10);
}

TEST(Memory, OfGridsItIsWithinTenPercent) {
  for (const Size& size : kSizes)
    for (const Layout& layout : kGrids) expect_predicted(layout, size, 0.1);
  // Norms of heads that tp ranks share.
  expect_predicted(kGrids[0],
                   {.row_tokens = 1400, .batch = 120, .images = {1, 0, 2}, .family = "internvl"},
                   0.1);
}

void scan(Options& o, int64_t cp, const char* way, const char* distribution) {
  o.meshes["llm"].cp = cp;
  o.meshes["llm"].cp_scan = way;
  o.meshes["llm"].cp_distribution = distribution;
}

TEST(Memory, OfScansOnGridsItIsWithinTenPercent) {
  const Layout layouts[] = {
      {"cp 2, heads", [](Options& o) { scan(o, 2, "ulysses", "makespan_min"); }},
      {"cp 4, states", [](Options& o) { scan(o, 4, "states", "uniform"); }},
      {"cp 2, states of rows that move, recomputed",
       [](Options& o) {
         scan(o, 2, "states", "zigzag");
         o.model.activation_checkpointing = AutoOption::of_count(1);
       }},
      {"tp 2 x cp 2, states, bf16", [](Options& o) {
         scan(o, o.meshes["llm"].tp = 2, "states", "makespan_min");
         o.precision.preset = "bf16";
       }}};
  Size size{.row_tokens = 1400, .batch = 120, .images = {0}};
  size.config = measured_model("qwen3_next").config;
  for (const Layout& layout : layouts) expect_predicted(layout, size, 0.1);
}

/// Keys and values of a unit of their own, and per-layer inputs, also where they cross stages
/// (E4B); layers that add the outputs of an MLP and of experts (26B-A4B).
TEST(Memory, OfGemma4sTextItIsWithinFifteenPercent) {
  const Layout layouts[] = {
      {"full_shard", [](Options&) {}},
      {"recomputed",
       [](Options& o) { o.model.activation_checkpointing = AutoOption::of_count(1); }},
      {"tp 2 x cp 2", [](Options& o) { o.meshes["llm"].tp = o.meshes["llm"].cp = 2; }},
      {"pp 4", [](Options& o) {
         o.meshes["llm"].pp = 4;
         o.data.row_tokens /= 4;
       }}};
  Size size{.row_tokens = 1400, .batch = 120, .images = {0}};
  for (const char* of : {"shared keys and inputs of each layer", "experts"}) {
    size.config = measured_model(std::string("gemma4_text with ") + of).config;
    for (const Layout& layout : layouts)
      expect_predicted(layout, size, layout.name == std::string("pp 4") ? 0.15 : 0.1);
  }
}

/// Clips of a conformer, distributed to the ranks of the language model or to their own ones.
TEST(Memory, OfConformersOnGridsAndInStagesItIsWithinTenPercent) {
  const Layout layouts[] = {
      {"tp 2 x cp 2 of llm", [](Options& o) { o.meshes["llm"].tp = o.meshes["llm"].cp = 2; }},
      {"audio on two ranks, pp 2", [](Options& o) {
         o.mesh.placement = "disjoint";
         o.meshes["audio"].encoder_dp = o.meshes["llm"].pp = 2;
       }}};
  const Size size{.row_tokens = 1400, .batch = 120, .images = {0}, .family = "gemma4 with audio"};
  for (const Layout& layout : layouts) expect_predicted(layout, size, 0.1);
}

/// Where ranks make parts of the features that they have rows of.
TEST(Memory, OfResampledFeaturesOnGridsItIsWithinTenPercent) {
  const Layout layouts[] = {
      {"tp 2", [](Options& o) { o.meshes["llm"].tp = o.meshes["vision"].tp = 2; }},
      {"tp 2 of the tower, cp 4 of the text",
       [](Options& o) { o.meshes["llm"].cp = 2 * (o.meshes["vision"].tp = 2); }},
      {"cp 2, ring", [](Options& o) {
         for (const char* module : {"vision", "llm"}) {
           o.meshes[module].cp = 2;
           o.meshes[module].cp_mode = "ring";
           o.meshes[module].cp_block = 16;
         }
       }}};
  const Size size{.row_tokens = 1400, .batch = 120, .images = {1, 1}, .family = "llava_onevision"};
  for (const Layout& layout : layouts) expect_predicted(layout, size, 0.1);
}

TEST(Memory, OfPipelinesItIsWithinFifteenPercent) {
  for (Size size : {kSizes[0], kSizes[1]}) {
    size.row_tokens /= 4;  // several microbatches
    for (const Layout& layout : kPipelines) expect_predicted(layout, size, 0.15);
  }
}

/// Replicated parameters weigh much here: embeddings at two stages, which are summed in place, and
/// a KV head of four ranks, which is packed for the sum.
TEST(Memory, OfSumsOverHoldersItIsWithinFivePercent) {
  nlohmann::json config{{"model_type", "llama"},    {"hidden_size", 32},
                        {"intermediate_size", 48},  {"num_hidden_layers", 4},
                        {"num_attention_heads", 4}, {"num_key_value_heads", 1},
                        {"vocab_size", 20000},      {"tie_word_embeddings", true}};
  Size size{.row_tokens = 48, .batch = 16, .images = {0}, .config = config.dump()};
  expect_predicted({"tied, pp 2",
                    [](Options& o) {
                      o.meshes["llm"].pp = 2;
                      o.meshes["llm"].strategy = "no_shard";
                    }},
                   size, 0.05);
  config.update({{"hidden_size", 256}, {"head_dim", 512}, {"vocab_size", 40}});
  config["num_hidden_layers"] = 6;
  size.config = config.dump();
  expect_predicted({"tp 4, one KV head",
                    [](Options& o) {
                      o.meshes["llm"].tp = 4;
                      o.meshes["llm"].strategy = "no_shard";
                      o.optim.kind = "sgd";
                      o.optim.momentum = 0;
                    }},
                   size, 0.05);
}

}  // namespace
}  // namespace zea::testing::test_memory
