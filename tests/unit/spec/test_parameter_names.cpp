// SPDX-License-Identifier: Apache-2.0
#include "spec/parameter_names.hpp"

#include <gtest/gtest.h>

namespace zea::test_parameter_names {
namespace {

struct Case {
  const char* given;
  const char* canonical;
};

TEST(ParameterNames, AcceptsEverySpelling) {
  const Case cases[] = {
      // transformers 5: the running model
      {"model.language_model.layers.0.mlp.up_proj.weight",
       "language_model.model.layers.0.mlp.up_proj.weight"},
      {"model.language_model.embed_tokens.weight", "language_model.model.embed_tokens.weight"},
      {"model.language_model.norm.weight", "language_model.model.norm.weight"},
      {"model.vision_tower.encoder.layers.1.mlp.fc1.bias",
       "vision_tower.encoder.layers.1.mlp.fc1.bias"},
      {"model.vision_tower.vision_model.pre_layrnorm.weight", "vision_tower.pre_layrnorm.weight"},
      {"model.multi_modal_projector.linear_1.bias", "multi_modal_projector.linear_1.bias"},
      {"lm_head.weight", "language_model.lm_head.weight"},
      // older files
      {"vision_tower.vision_model.embeddings.class_embedding",
       "vision_tower.embeddings.class_embedding"},
      {"language_model.lm_head.weight", "language_model.lm_head.weight"},
      {"language_model.model.layers.11.input_layernorm.weight",
       "language_model.model.layers.11.input_layernorm.weight"},
      // a text model's own names
      {"model.layers.3.self_attn.q_proj.weight",
       "language_model.model.layers.3.self_attn.q_proj.weight"},
      {"model.norm.weight", "language_model.model.norm.weight"},
      // none of these
      {"image_newline", "image_newline"},
      {"audio_tower.layers.0.weight", "audio_tower.layers.0.weight"},
  };
  for (const Case& each : cases) {
    for (const char* family : {"gemma3", "llava"}) {
      EXPECT_EQ(canonical_parameter_name(family, each.given), each.canonical);
      EXPECT_EQ(canonical_parameter_name(family, each.canonical), each.canonical);
    }
  }
}

TEST(ParameterNames, Mistral3HasThoseOfLlava) {
  const Case cases[] = {
      {"model.vision_tower.ln_pre.weight", "vision_tower.ln_pre.weight"},
      {"model.multi_modal_projector.patch_merger.merging_layer.weight",
       "multi_modal_projector.patch_merger.merging_layer.weight"},
      {"model.language_model.norm.weight", "language_model.model.norm.weight"},
      {"lm_head.weight", "language_model.lm_head.weight"},
  };
  for (const Case& each : cases)
    EXPECT_EQ(canonical_parameter_name("mistral3", each.given), each.canonical);
}

TEST(ParameterNames, Gpt2FilesMayLeaveTheOuterNameOut) {
  const Case cases[] = {
      {"h.3.attn.c_attn.weight", "transformer.h.3.attn.c_attn.weight"},
      {"wte.weight", "transformer.wte.weight"},
      {"wpe.weight", "transformer.wpe.weight"},
      {"ln_f.bias", "transformer.ln_f.bias"},
      {"lm_head.weight", "lm_head.weight"},
  };
  for (const Case& each : cases) {
    EXPECT_EQ(canonical_parameter_name("gpt2", each.given), each.canonical);
    EXPECT_EQ(canonical_parameter_name("gpt2", each.canonical), each.canonical);
  }
}

TEST(ParameterNames, TheRunningQwen2VlHasBothPartsInOne) {
  const Case cases[] = {
      {"model.visual.blocks.0.attn.qkv.weight", "visual.blocks.0.attn.qkv.weight"},
      {"model.language_model.layers.1.mlp.up_proj.weight", "model.layers.1.mlp.up_proj.weight"},
      {"lm_head.weight", "lm_head.weight"},
  };
  for (const Case& each : cases) {
    EXPECT_EQ(canonical_parameter_name("qwen2_vl", each.given), each.canonical);
    EXPECT_EQ(canonical_parameter_name("qwen2_vl", each.canonical), each.canonical);
  }
}

TEST(ParameterNames, GoBackToThoseOfTheRunningModel) {
  const std::pair<const char*, const char*> cases[] = {
      {"llava", "model.language_model.layers.0.mlp.up_proj.weight"},
      {"llava", "model.vision_tower.encoder.layers.0.mlp.fc1.weight"},
      {"llava", "lm_head.weight"},
      {"qwen2_vl", "model.visual.blocks.0.attn.qkv.weight"},
      {"qwen2_vl", "model.language_model.layers.1.mlp.up_proj.weight"},
      {"gpt2", "transformer.h.0.attn.c_attn.weight"},
      {"llama", "model.layers.0.mlp.up_proj.weight"}};
  for (const auto& [family, name] : cases)
    EXPECT_EQ(running_parameter_name(family, canonical_parameter_name(family, name)), name);
}

TEST(ParameterNames, ATextAloneHasThoseOfItsComposite) {
  for (const char* family : {"qwen3_5_text", "qwen3_5_moe_text"}) {
    EXPECT_EQ(canonical_parameter_name(family, "model.language_model.layers.0.linear_attn.A_log"),
              "model.layers.0.linear_attn.A_log");
    EXPECT_EQ(canonical_parameter_name(family, "model.norm.weight"), "model.norm.weight");
  }
}

TEST(ParameterNames, OtherFamiliesKeepTheirs) {
  EXPECT_EQ(canonical_parameter_name("llama", "lm_head.weight"), "lm_head.weight");
}

TEST(ParameterNames, KnowsComputedBuffers) {
  EXPECT_TRUE(is_computed_buffer("vision_tower.vision_model.embeddings.position_ids"));
  EXPECT_TRUE(is_computed_buffer("model.layers.0.self_attn.rotary_emb.inv_freq"));
  EXPECT_TRUE(is_computed_buffer("h.0.attn.bias"));
  EXPECT_TRUE(is_computed_buffer("transformer.h.11.attn.masked_bias"));
  for (const char* name :
       {"position_ids", "rotary_emb.inv_freq", "model.rotary_emb_local.inv_freq", "masked_bias",
        "model.rotary_emb.original_inv_freq", "model.embed_tokens.embed_scale",
        "model.layers.0.self_attn.rotary_emb.cos_cached"})
    EXPECT_TRUE(is_computed_buffer(name)) << name;
  EXPECT_FALSE(is_computed_buffer("visual.blocks.0.attn.qkv.bias"));
  EXPECT_FALSE(is_computed_buffer("transformer.h.0.attn.c_attn.bias"));
  EXPECT_FALSE(is_computed_buffer("vision_tower.embeddings.position_embedding.weight"));
}

TEST(ParameterNames, OfViTAreOthersInFilesThanInTheRunningModel) {
  const Case cases[] = {
      {"layers.0.attention.q_proj", "encoder.layer.0.attention.attention.query"},
      {"layers.3.attention.v_proj.lora_A.weight",
       "encoder.layer.3.attention.attention.value.lora_A.weight"},
      {"layers.11.attention.o_proj.bias", "encoder.layer.11.attention.output.dense.bias"},
      {"layers.0.mlp.fc1.weight", "encoder.layer.0.intermediate.dense.weight"},
      {"layers.0.mlp.fc2.weight", "encoder.layer.0.output.dense.weight"}};
  for (const auto& [running, saved] : cases) {
    EXPECT_EQ(canonical_vit_name(running), saved);
    EXPECT_EQ(canonical_vit_name(saved), saved);
    EXPECT_EQ(running_vit_name(saved), running);
    EXPECT_EQ(canonical_parameter_name("llava", std::string("model.vision_tower.") + running),
              std::string("vision_tower.") + saved);
  }
  for (const char* other : {"encoder.layers.0.mlp.fc1.weight", "layers.0.self_attn.q_proj"})
    EXPECT_EQ(canonical_vit_name(other), other);
}

TEST(ParameterNames, OfATowerAreWithoutItsModel) {
  EXPECT_EQ(tower_parameter_name("vision_model.encoder.layers.0.mlp.fc1", false),
            "encoder.layers.0.mlp.fc1");
  EXPECT_EQ(tower_parameter_name("encoder.layers.0.fc1", true), "layers.0.fc1");
  EXPECT_EQ(tower_parameter_name("model.encoder.layers.0.fc1", true), "layers.0.fc1");
  EXPECT_EQ(tower_parameter_name("encoder.layers.0.fc1", false), "encoder.layers.0.fc1");
}

}  // namespace
}  // namespace zea::test_parameter_names
