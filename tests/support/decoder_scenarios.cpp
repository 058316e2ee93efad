// SPDX-License-Identifier: Apache-2.0
// Scenarios of decoders other than Llama's: Gemma 4, latent attention, sinks, mixtures of experts.
#include <iterator>

#include "support/grid_scenarios.hpp"
#include "support/made_up_models.hpp"
#include "support/tiny_gemma4.hpp"
#include "support/tiny_kimi_k25.hpp"
#include "support/tiny_qwen2_vl.hpp"

namespace zea::testing {
namespace {

std::string experts_config(const TinyLlava& model) {
  return with_experts(tiny_llava_config(model));
}

std::string gemma4_config(const TinyLlava& model) {
  return with_gemma4_text(tiny_llava_config(model));
}

std::string gemma4_e4b_config(const TinyLlava& model) {
  return with_gemma4_text(tiny_llava_config(model), {.is_like_e4b = true});
}

/// Returns the config that `make` returns, with the heads of `model`.
template <std::string (*make)()>
std::string with_heads_of(const TinyLlava& model) {
  return with_heads(make(), model.heads, model.kv_heads);
}

/// Large gradients would let Adam turn rounding errors into updates.
void soften(Options& deck) {
  deck.optim.eps = 1;
  deck.optim.lr = 1e-3;
}

bool exchanges_heads_and_keys(const Grid& grid) {
  return grid.llm.mode == std::string("ulysses_ring");
}

/// Distributes clips to all ranks, since a conformer needs them whole.
void keep_clips_whole(Options& deck) {
  ModuleMeshOptions whole;
  whole.strategy = deck.meshes["audio"].strategy;
  deck.meshes["audio"] = whole;
}

const GridScenario kDecoderScenarios[] = {
    {.name = "Gemma 4's text, layers with heads of their own",
     .model = {.tied = true},
     .other_config = gemma4_config},
    {.name = "Gemma 4's text, adapters, every unit recomputed",
     .model = {.biases = true},
     .images = {0, 1},
     .set =
         [](Options& deck) {
           deck.llm.lora = {.targets = {"q_proj", "k_proj", "v_proj", "o_proj"}, .rank = 3};
           deck.model.activation_checkpointing = AutoOption::of_count(1);
         },
     .other_config = gemma4_config},
    {.name = "Gemma 4's text, experts beside MLPs",
     .other_config =
         [](const TinyLlava& o) { return with_gemma4_text(tiny_llava_config(o), {.experts = 5}); }},
    {.name = "Gemma 4 E4B's text, shared keys and inputs of each layer",
     .model = {.tied = true},
     .other_config = gemma4_e4b_config,
     .needs = exchanges_heads_and_keys},
    {.name = "Gemma 4 E4B's text, adapters, every unit recomputed",
     .model = {.biases = true},
     .images = {0, 1},
     .set =
         [](Options& deck) {
           deck.llm.lora = {.targets = {"*_proj", "*per_layer*gate", "per_layer_model_projection"},
                            .rank = 3};
           deck.model.activation_checkpointing = AutoOption::of_count(1);
           soften(deck);
         },
     .other_config = gemma4_e4b_config},
    {.name = "Gemma 4, images and videos that see all of themselves in windows",
     .set = [](Options& deck) { deck.optim.weight_decays = {}; },  // it has no biases
     .remake = shrink_gemma4,
     .other_config = [](const TinyLlava& model) { return tiny_gemma4_config(model); },
     .needs = exchanges_heads_and_keys},
    {.name = "Gemma 4, clipped linears, adapters in both encoders, every unit recomputed",
     .model = {.audio = true},
     .images = {2, 1, 0},
     .set =
         [](Options& deck) {
           keep_clips_whole(deck);
           for (const char* encoder : {"vision", "audio"})
             deck.encoders[encoder].lora = {.targets = {"*"}, .rank = 3};
           deck.model.activation_checkpointing = AutoOption::of_count(1);
         },
     .remake = shrink_gemma4,
     .other_config = [](const TinyLlava& model) { return tiny_gemma4_config(model, true); }},
    {.name = "Gemma 4 E4B, images, videos and sound, clipped linears",
     .model = {.audio = true},
     .set =
         [](Options& deck) {
           keep_clips_whole(deck);
           soften(deck);
         },
     .clips = {1, 0, 2},
     .remake = shrink_gemma4,
     .other_config =
         [](const TinyLlava& model) {
           return tiny_gemma4_config(model, true, {.is_like_e4b = true});
         }},
    {.name = "DeepSeek-V3, latent attention",
     .other_config =
         [](const TinyLlava& o) { return with_latent_attention(tiny_llava_config(o)); }},
    {.name = "DeepSeek-V3, adapters of latents and what is made of them",
     .set = [](Options& o) { o.llm.lora = {.targets = {"*"}, .rank = 3}; },
     .other_config =
         [](const TinyLlava& o) { return with_latent_attention(tiny_llava_config(o)); }},
    {.name = "gpt-oss, attention sinks and biased experts",
     .other_config = [](const TinyLlava& o) { return with_gpt_oss(tiny_llava_config(o)); }},
    {.name = "gpt-oss, adapters of biased experts and routers",
     .set = [](Options& o) { o.llm.lora = {.targets = {"mlp.*"}, .rank = 3}; },
     .other_config = [](const TinyLlava& o) { return with_gpt_oss(tiny_llava_config(o)); }},
    {"Qwen2.5-VL, images and videos in windows",
     {},
     {1, 0, 2},
     nullptr,
     nullptr,
     false,
     5,
     {1},
     shrink_images,
     with_heads_of<tiny_qwen2_5_vl_config>},
    {.name = "Qwen2.5-Omni, images, videos and sound in chunks",
     .model = {.audio = true},
     .set = [](Options& deck) { deck.data.row_tokens = 90; },
     .clips = {1, 0, 1},
     .remake = shrink_images,
     .other_config = with_heads_of<tiny_qwen2_5_omni_config>},
    {.name = "Qwen2.5-Omni, adapters in all of its modules, every unit recomputed",
     .model = {.audio = true},
     .set =
         [](Options& deck) {
           deck.data.row_tokens = 90;
           deck.llm.lora = {.targets = {"*_proj"}, .rank = 3};
           for (const char* encoder : {"vision", "audio"})
             deck.encoders[encoder].lora = {.targets = {"*"}, .rank = 3};
           deck.model.activation_checkpointing = AutoOption::of_count(1);
         },
     .clips = {1, 0, 1},
     .remake = shrink_images,
     .other_config = with_heads_of<tiny_qwen2_5_omni_config>},
    {.name = "Qwen3-Omni, experts, images, videos and sound in chunks",
     .model = {.audio = true},
     .set = [](Options& deck) { deck.data.row_tokens = 90; },
     .clips = {1, 0, 1},
     .remake = shrink_images,
     .other_config = with_heads_of<tiny_qwen3_omni_config>},
    {.name = "Qwen3-Omni, adapters in all of its modules, every unit recomputed",
     .model = {.audio = true},
     .set =
         [](Options& deck) {
           deck.data.row_tokens = 90;
           for (const char* module : {"vision", "audio"})
             deck.encoders[module].lora = {.targets = {"*"}, .rank = 3};
           deck.llm.lora = {.targets = {"*"}, .rank = 3};
           deck.model.activation_checkpointing = AutoOption::of_count(1);
         },
     .clips = {1, 0, 1},
     .remake = shrink_images,
     .other_config = with_heads_of<tiny_qwen3_omni_config>},
    {"Qwen3-VL, images and videos, features of several depths",
     {},
     {2, 1, 0},
     [](Options& deck) { deck.data.row_tokens = 80; },
     nullptr,
     false,
     5,
     {1},
     shrink_images,
     with_heads_of<tiny_qwen3_vl_config>},
    {.name = "GLM-4.5V, cubic positions and a gated merger",
     .images = {2, 1, 0},
     .set = [](Options& deck) { deck.data.row_tokens = 80; },
     .clips = {1},
     .remake = shrink_images,
     .other_config = with_heads_of<tiny_glm4v_moe_config>},
    {.name = "GLM-4.1V, neighbors that rotate, adapters, every unit recomputed",
     .images = {2, 1, 0},
     .set =
         [](Options& deck) {
           deck.data.row_tokens = 80;
           deck.llm.lora = {.targets = {"q_proj", "k_proj", "gate_up_proj", "down_proj"},
                            .rank = 3};
           deck.model.activation_checkpointing = AutoOption::of_count(1);
         },
     .clips = {1},
     .remake = shrink_images,
     .other_config = with_heads_of<tiny_glm4v_config>},
    {.name = "Kimi-K2.5, padded images and videos, adapters in the tower and the text",
     .images = {2, 1, 0},
     .set =
         [](Options& deck) {
           deck.data.row_tokens = 80;
           deck.llm.lora = {.targets = {"kv_b_proj", "up_proj"}, .rank = 3};
           deck.encoders["vision"].lora = {.targets = {"wqkv", "fc1"}, .rank = 3};
         },
     .remake = shrink_images,
     .other_config =
         [](const TinyLlava& model) {
           // The id is in the vocabulary, because the samples' text uses it.
           return tiny_kimi_k25_config(model).insert(1, R"("video_token_id":4,)");
         }},
    {.name = "mixtures of experts beside a shared one",
     .model = {.kv_heads = 1},
     .other_config = experts_config},
    {.name = "mixtures of experts, adapters of each expert and in attention, every unit recomputed",
     .set =
         [](Options& deck) {
           deck.llm.lora = {.targets = {"q_proj", "o_proj", "gate", "*.experts.*"}, .rank = 3};
           deck.model.activation_checkpointing = AutoOption::of_count(1);
           deck.data.row_tokens = 24;
         },
     .other_config = experts_config},
    {.name = "mixtures of experts, adapters, selective recomputation",
     .set =
         [](Options& deck) {
           deck.llm.lora = {.targets = {"q_proj", "o_proj", "*.experts.*"}, .rank = 3};
           deck.model.activation_checkpointing = AutoOption::selective();
         },
     .other_config = experts_config},
    {.name = "mixtures of experts, adapters of their stacks and of shared experts",
     .set =
         [](Options& deck) {
           deck.llm.lora = {.targets = {"experts.gate_up_proj", "experts.down_proj", "*shared*"},
                            .rank = 3,
                            .rank_pattern = {"experts.down_proj = 2"}};
         },
     .other_config = experts_config},
    {.name = "Qwen3-VL-MoE, stacked experts, frozen tower",
     .images = {2, 1, 0},
     .set =
         [](Options& deck) {
           deck.encoders["vision"].train = false;
           deck.data.row_tokens = 80;
         },
     .clips = {1},
     .remake = shrink_images,
     .other_config = with_heads_of<tiny_qwen3_vl_moe_config>},
};

}  // namespace

const std::vector<GridScenario>& decoder_scenarios() {
  static const std::vector<GridScenario> all(std::begin(kDecoderScenarios),
                                             std::end(kDecoderScenarios));
  return all;
}

}  // namespace zea::testing
