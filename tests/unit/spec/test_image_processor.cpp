// SPDX-License-Identifier: Apache-2.0
// Settings of a directory's image processor override the family's defaults, and are refused if zea
// does not support them.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "core/error.hpp"
#include "schedule/plan.hpp"
#include "support/tiny_llava.hpp"

namespace zea::test_image_processor {
namespace {

using Json = nlohmann::json;

/// A LLaVA of CLIP with images of 8 x 8.
Json llava() {
  return Json::parse(testing::tiny_llava_config());
}

Json pixtral() {
  return Json::parse(testing::tiny_llava_config({.image_size = 24, .pixtral = true}));
}

Json llava_next() {
  Json config = llava();
  config["model_type"] = "llava_next";
  config["image_grid_pinpoints"] = {{8, 16}, {16, 8}};
  return config;
}

Json internvl() {
  Json vision{{"model_type", "internvl_vision"},
              {"hidden_size", 16},
              {"intermediate_size", 24},
              {"num_hidden_layers", 2},
              {"num_attention_heads", 2},
              {"image_size", {8, 8}},
              {"patch_size", {4, 4}}};
  Json text = llava()["text_config"];
  return {{"model_type", "internvl"}, {"vision_config", vision}, {"text_config", text}};
}

Json qwen2_vl() {
  Json text{{"hidden_size", 32},        {"intermediate_size", 40},  {"num_hidden_layers", 1},
            {"num_attention_heads", 4}, {"num_key_value_heads", 2}, {"vocab_size", 64}};
  text["rope_parameters"] = {{"rope_type", "default"}, {"mrope_section", {2, 1, 1}}};
  Json vision{{"depth", 1}, {"embed_dim", 16}, {"num_heads", 2}, {"hidden_size", 32}};
  return {{"model_type", "qwen2_vl"}, {"vision_config", vision}, {"text_config", text}};
}

PatchInput patches_of(Json config, const Json& processor) {
  config[kImageProcessor] = processor;
  return make_model_spec(config.dump()).encoders.at(0).patches();
}

std::string refusal(const Json& config, const Json& processor) {
  try {
    patches_of(config, processor);
  } catch (const WeightsError& error) {
    return error.what();
  }
  return "";
}

/// Returns the encoder of `whole`, composed with a language model.
ModelSpec of_part(const Json& whole, const Json& processor) {
  const bool has_class = whole["vision_config"]["model_type"] == "clip_vision_model";
  const Json eyes{{"vision_config", whole["vision_config"]},
                  {"vision_feature_select_strategy", has_class ? "default" : "full"},
                  {"image_token_index", 3},
                  {kImageProcessor, processor}};
  const Json config{{"model_type", "composed"},
                    {"text_config", llava()["text_config"]},
                    {"encoders", {{"eyes", eyes}}}};
  return make_model_spec(config.dump());
}

PatchInput patches_of_part(const Json& whole, const Json& processor) {
  return of_part(whole, processor).encoders.at(0).patches();
}

/// A LLaVA of SigLIP, whose usual processor does not crop the center.
Json of_siglip() {
  return Json::parse(testing::tiny_llava_config({.siglip = true}));
}

Json onevision() {
  Json config = of_siglip();
  config["model_type"] = "llava_onevision";
  config["vision_feature_select_strategy"] = "full";
  config["image_grid_pinpoints"] = {{8, 16}, {16, 8}};
  return config;
}

TEST(ImageProcessor, OfAPartSizesAreItsEncoders) {
  const Json square{{"height", 8}, {"width", 8}};
  const Json cropped{{"size", 11}, {"crop_size", 8}};
  EXPECT_EQ(of_part(llava(), cropped).notes.size(), 1u);  // of its placeholder
  PatchInput found = patches_of_part(llava(), cropped);
  EXPECT_TRUE(found.as<SquareImages>()->crops);
  EXPECT_EQ(found.as<SquareImages>()->shortest_edge, 11);
  found = patches_of_part(llava(), {{"size", square}, {"crop_size", 8}});
  EXPECT_FALSE(found.as<SquareImages>()->crops);
  found = patches_of_part(llava(), {{"size", square}, {"do_center_crop", false}});
  EXPECT_FALSE(found.as<SquareImages>()->crops);
  found = patches_of_part(of_siglip(), {{"size", 12}, {"crop_size", 8}, {"do_center_crop", true}});
  EXPECT_TRUE(found.as<SquareImages>()->crops);
  EXPECT_EQ(found.as<SquareImages>()->shortest_edge, 12);
  found = patches_of_part(pixtral(), {{"size", {{"longest_edge", 13}}}});
  EXPECT_EQ(found.image_size, 13);
}

TEST(ImageProcessor, OfAPartOtherSquaresAreScaledAndNoted) {
  const Json of_dinov2{{"size", {{"shortest_edge", 256}}},
                       {"crop_size", {{"height", 224}, {"width", 224}}},
                       {"do_center_crop", true}};
  const ModelSpec found = of_part(llava(), of_dinov2);
  EXPECT_TRUE(found.encoders[0].patches().as<SquareImages>()->crops);
  EXPECT_EQ(found.encoders[0].patches().as<SquareImages>()->shortest_edge, 9);  // 8 * 256 / 224
  ASSERT_EQ(found.notes.size(), 2u);
  EXPECT_EQ(found.notes.front(),
            "eyes.image_processor: its images of 224 x 224 become 8 x 8, the encoder's image_size, "
            "of a shorter side of 9 in place of 256");
  const ModelSpec whole =
      of_part(of_siglip(), {{"size", {{"height", 6}, {"width", 6}}}, {"do_center_crop", nullptr}});
  EXPECT_FALSE(whole.encoders[0].patches().as<SquareImages>()->crops);
  ASSERT_EQ(whole.notes.size(), 2u);
  EXPECT_EQ(whole.notes.front(),
            "eyes.image_processor: its images of 6 x 6 become 8 x 8, the encoder's image_size");
}

TEST(ImageProcessor, OfAPartWhatMakesNoSquaresIsRefused) {
  const Json shortest{{"shortest_edge", 8}};
  for (const auto& [processor, sentence] : std::vector<std::pair<Json, const char*>>{
           {{{"do_resize", false}}, "eyes.image_processor.do_resize = false; allowed: true"},
           {{{"do_pad", true}}, "do_pad = true; allowed: false"},
           {{{"do_center_crop", false}}, "do_center_crop = false; allowed: true, or a size"},
           {{{"do_center_crop", false}, {"size", shortest}}, "a height and an equal width"},
           {{{"crop_size", {{"height", 6}, {"width", 8}}}}, "a height and an equal width"},
           {{{"crop_size", 6}, {"size", 5}}, "size = 5; allowed: a shortest_edge of 6 or more"},
           {{{"size", 8}}, "size = 8; allowed: a shortest_edge of 224 or more"}}) {
    try {
      of_part(llava(), processor);
      ADD_FAILURE() << processor.dump();
    } catch (const WeightsError& error) {
      EXPECT_NE(std::string(error.what()).find(sentence), std::string::npos) << error.what();
    }
  }
}

/// Neither colors nor a crop.
void expect_no_step(const PatchInput& found) {
  EXPECT_EQ(found.colours.scale, 1);
  EXPECT_EQ(found.colours.mean, (std::vector<double>{0, 0, 0}));
  EXPECT_EQ(found.colours.std, (std::vector<double>{1, 1, 1}));
  EXPECT_FALSE(found.as<SquareImages>()->crops);
}

TEST(ImageProcessor, SaysColoursAndSizes) {
  const PatchInput found = patches_of(llava(), {{"image_mean", {0, 0.5, 0.25}},
                                                {"image_std", {1, 0.5, 2}},
                                                {"rescale_factor", 0.5},
                                                {"resample", 2},
                                                {"do_center_crop", true},
                                                {"size", {{"shortest_edge", 11}}},
                                                {"crop_size", 8},
                                                {"image_processor_type", "CLIPImageProcessor"}});
  EXPECT_EQ(found.colours.mean, (std::vector<double>{0, 0.5, 0.25}));
  EXPECT_EQ(found.colours.std, (std::vector<double>{1, 0.5, 2}));
  EXPECT_EQ(found.colours.scale, 0.5);
  EXPECT_EQ(found.resampling, Resampling::Bilinear);
  EXPECT_EQ(found.as<SquareImages>()->shortest_edge, 11);
  EXPECT_TRUE(found.as<SquareImages>()->crops);
  const PatchInput plain = patches_of(llava(), {{"do_rescale", false},
                                                {"do_normalize", false},
                                                {"do_center_crop", nullptr},
                                                {"size", {{"height", 8}, {"width", 8}}}});
  expect_no_step(plain);
}

/// In transformers a null is no default.
TEST(ImageProcessor, NullTurnsAStepOff) {
  const PatchInput found = patches_of(llava(), {{"do_rescale", nullptr},
                                                {"do_normalize", nullptr},
                                                {"do_center_crop", nullptr},
                                                {"do_pad", nullptr},
                                                {"image_mean", {0.1, 0.2, 0.3}},
                                                {"size", {{"height", 8}, {"width", 8}}}});
  expect_no_step(found);
}

TEST(ImageProcessor, IsOfTheClassThatIsNamed) {
  const auto named = [](const char* type, Json rest) {
    rest["image_processor_type"] = type;
    return patches_of(of_siglip(), rest);
  };
  PatchInput found = named("CLIPImageProcessor", {{"size", 8}, {"crop_size", 8}});
  EXPECT_TRUE(found.as<SquareImages>()->crops);
  EXPECT_EQ(found.as<SquareImages>()->shortest_edge, 8);
  EXPECT_EQ(found.colours.mean, ImageColours().mean);
  EXPECT_EQ(found.colours.std, ImageColours().std);
  found = named("ViTImageProcessorFast", {{"size", 8}});
  EXPECT_FALSE(found.as<SquareImages>()->crops);
  EXPECT_EQ(found.as<SquareImages>()->shortest_edge, 0);
  EXPECT_EQ(found.resampling, Resampling::Bilinear);
  EXPECT_EQ(found.colours.mean, (std::vector<double>{0.5, 0.5, 0.5}));
  found = named("CLIPImageProcessor", {{"size", 8}, {"default_to_square", true}});
  EXPECT_FALSE(found.as<SquareImages>()->crops);
  found = named("OddImageProcessor", {{"image_mean", {0.1, 0.2, 0.3}},
                                      {"image_std", {1, 2, 3}},
                                      {"size", 11},
                                      {"crop_size", 8},
                                      {"do_center_crop", true}});
  EXPECT_TRUE(found.as<SquareImages>()->crops);
  EXPECT_EQ(found.as<SquareImages>()->shortest_edge, 11);
  EXPECT_EQ(found.colours.std, (std::vector<double>{1, 2, 3}));
  found = patches_of(llava(), {{"feature_extractor_type", "ViTFeatureExtractor"}, {"size", 8}});
  EXPECT_FALSE(found.as<SquareImages>()->crops);
  EXPECT_EQ(found.colours.std, (std::vector<double>{0.5, 0.5, 0.5}));
}

TEST(ImageProcessor, SaysWhoseResizingItIs) {
  const auto is_by_torchvision = [](const char* type, ImageBackend backend) {
    Json config = llava();
    config[kImageProcessor] = {{"image_processor_type", type}};
    Options deck;
    deck.data.image_backend = backend;
    return make_plan(deck, config.dump(), 1).model.encoders[0].patches().by_torchvision;
  };
  EXPECT_TRUE(is_by_torchvision("CLIPImageProcessorFast", ImageBackend::Auto));
  EXPECT_FALSE(is_by_torchvision("CLIPImageProcessor", ImageBackend::Auto));
  EXPECT_FALSE(is_by_torchvision("CLIPImageProcessorFast", ImageBackend::Pil));
  EXPECT_TRUE(is_by_torchvision("CLIPImageProcessor", ImageBackend::Torchvision));
}

TEST(ImageProcessor, LeavesWhatItDoesNotSay) {
  const PatchInput found = patches_of(llava(), Json::object());
  EXPECT_EQ(found.colours.mean, ImageColours().mean);
  EXPECT_EQ(found.colours.scale, 1.0 / 255);
  EXPECT_EQ(found.resampling, Resampling::Bicubic);
  EXPECT_TRUE(found.as<SquareImages>()->crops);
  EXPECT_EQ(patches_of(internvl(), Json::object()).tile_limits().most, 12);
  const PixelLimits limits =
      patches_of(qwen2_vl(), {{"max_pixels", nullptr}}).as<ImagesWithin>()->pixels;
  EXPECT_EQ(limits.least, 56 * 56);
  EXPECT_EQ(limits.most, 28 * 28 * 1280);
}

TEST(ImageProcessor, SaysLimits) {
  const PixelLimits by_size =
      patches_of(qwen2_vl(), {{"size", {{"shortest_edge", 900}, {"longest_edge", 5000}}},
                              {"patch_size", 14},
                              {"merge_size", 2},
                              {"temporal_patch_size", 2}})
          .as<ImagesWithin>()
          ->pixels;
  EXPECT_EQ(by_size.least, 900);
  EXPECT_EQ(by_size.most, 5000);
  const PixelLimits of_old_files =
      patches_of(qwen2_vl(), {{"size", {{"min_pixels", 900}, {"max_pixels", 5000}}}})
          .as<ImagesWithin>()
          ->pixels;
  EXPECT_EQ(of_old_files.least, 900);
  EXPECT_EQ(of_old_files.most, 5000);
  const PixelLimits by_name =
      patches_of(qwen2_vl(), {{"size", {{"shortest_edge", 900}}}, {"max_pixels", 7000}})
          .as<ImagesWithin>()
          ->pixels;
  EXPECT_EQ(by_name.least, 900);
  EXPECT_EQ(by_name.most, 7000);
  const PatchInput tiles = patches_of(internvl(), {{"min_patches", 2},
                                                   {"max_patches", 6},
                                                   {"crop_to_patches", false},
                                                   {"size", {{"height", 8}, {"width", 8}}}});
  EXPECT_EQ(tiles.tile_limits().least, 2);
  EXPECT_EQ(tiles.tile_limits().most, 6);
  EXPECT_EQ(patches_of(pixtral(), {{"size", {{"longest_edge", 13}}}}).image_size, 13);
  const Json patch{{"height", 4}, {"width", 4}};
  EXPECT_EQ(patches_of(pixtral(), {{"patch_size", 4}}).patch_size, 4);
  EXPECT_EQ(patches_of(pixtral(), {{"patch_size", patch}}).patch_size, 4);
  const Json merging =
      Json::parse(testing::tiny_llava_config({.image_size = 24, .pixtral = true, .merges = true}));
  EXPECT_EQ(patches_of(merging, {{"patch_size", 4}}).block, 2);
  EXPECT_EQ(patches_of(merging, {{"patch_size", 8}}).block, 2);
  const Json size{{"shortest_edge", 8}};
  EXPECT_EQ(patches_of(llava_next(), {{"image_grid_pinpoints", {{8, 16}, {16, 8}}},
                                      {"size", size},
                                      {"crop_size", 8},
                                      {"do_pad", true}})
                .as<FittedTiles>()
                ->resolutions.size(),
            2u);
}

TEST(ImageProcessor, SaysCropsBesideImages) {
  const Json gemma3 = Json::parse(testing::tiny_llava_config({.siglip = true, .gemma3 = true}));
  EXPECT_FALSE(patches_of(gemma3, {{"do_pan_and_scan", nullptr}}).has_tiles());
  PatchInput found = patches_of(gemma3, {{"do_pan_and_scan", true}});
  EXPECT_EQ(found.as<SquareImages>()->pan_and_scan->most, 4);
  EXPECT_EQ(found.as<SquareImages>()->pan_and_scan->least_side, 256);
  EXPECT_EQ(found.as<SquareImages>()->pan_and_scan->least_ratio, 1.2);
  found = patches_of(gemma3, {{"do_pan_and_scan", true},
                              {"pan_and_scan_max_num_crops", 3},
                              {"pan_and_scan_min_crop_size", 10},
                              {"pan_and_scan_min_ratio_to_activate", 1.5}});
  const int64_t sizes[][4] = {{20, 20, 1, 1}, {20, 29, 1, 1}, {20, 30, 2, 1}, {20, 90, 3, 1},
                              {90, 20, 1, 3}, {9, 40, 1, 1},  {12, 29, 2, 1}, {15, 10, 1, 1}};
  for (const auto& [height, width, wide, high] : sizes) {
    const TileGrid grid = found.grid({height, width});
    EXPECT_EQ(grid.wide, wide) << height << " x " << width;
    EXPECT_EQ(grid.high, high) << height << " x " << width;
  }
  EXPECT_NE(refusal(gemma3, {{"do_pan_and_scan", true}, {"pan_and_scan_max_num_crops", 1}})
                .find("allowed: 2 to 64"),
            std::string::npos);
}

TEST(ImageProcessor, IsPassedOverWithoutImages) {
  Json config = llava()["text_config"];
  config["model_type"] = "llama";
  config[kImageProcessor] = {{"resample", 1}};
  EXPECT_TRUE(make_model_spec(config.dump()).encoders.empty());
}

TEST(ImageProcessor, RefusesWhatIsNotBuilt) {
  struct Case {
    Json config, processor;
    const char* sentence;
  };
  const Json no{{"height", 9}, {"width", 8}};
  for (const auto& [config, processor, sentence] : std::vector<Case>{
           {llava(), {{"resample", 1}}, "resample = 1; allowed: 2 (bilinear), 3 (bicubic)"},
           {llava(), {{"image_std", {1, 0, 1}}}, "a list of 3 numbers above 0"},
           {llava(), {{"image_mean", {1, 0}}}, "a list of 3 numbers"},
           {llava(), {{"rescale_factor", 0}}, "rescale_factor = 0; allowed: above 0"},
           {llava(), {{"do_resize", false}}, "do_resize = false; allowed: true"},
           {llava(), {{"do_resize", nullptr}}, "do_resize = null; allowed: true (null turns it"},
           {llava(), {{"do_center_crop", nullptr}}, "do_center_crop = null; allowed: true, or a"},
           {llava(), {{"do_pad", true}}, "do_pad = true; allowed: false"},
           {llava(), {{"do_center_crop", false}}, "do_center_crop = false"},
           {llava(), {{"crop_size", no}}, "crop_size = {\"height\":9,\"width\":8}; allowed: 8 x 8"},
           {llava(), {{"size", 7}}, "size = 7; allowed: a shortest_edge of 8 or more"},
           {llava(), {{"size", 9}, {"do_center_crop", false}}, "size = 9; allowed: 8 x 8"},
           {llava(), {{"size", 8}, {"do_center_crop", false}}, "the shorter side makes no square"},
           {of_siglip(),
            {{"size", 8}, {"image_processor_type", "SiglipImageProcessor"}},
            "size = 8; allowed: 8 x 8"},
           {llava(),
            {{"image_std", {1, 1, 1}}, {"image_processor_type", "OddImageProcessor"}},
            "image_mean = nothing; allowed: a list of 3 numbers, as zea does not know those of "
            "Odd"},
           {llava(), {{"do_pan_and_scan", true}}, "do_pan_and_scan = true"},
           {llava(), {{"do_flip", true}}, "image_processor.do_flip = true is a key"},
           {llava(), {{"size", {{"high", 8}}}}, "allowed: a shortest_edge"},
           {llava(), Json::array(), "is not an object"},
           {internvl(), {{"size", 16}}, "size = 16; allowed: 8 x 8"},
           {internvl(), {{"min_patches", 13}}, "min_patches = 13; allowed: 1 to max_patches = 12"},
           {internvl(), {{"do_center_crop", true}}, "do_center_crop = true"},
           {llava_next(), {{"image_grid_pinpoints", {{8, 8}}}}, "allowed: those of config.json"},
           {llava_next(), {{"aspect_ratio_setting", "pad"}}, "aspect_ratio_setting = pad"},
           {onevision(), {{"do_normalize", false}}, "do_normalize = false; allowed: true (images"},
           {qwen2_vl(), {{"patch_size", 16}}, "patch_size = 16; allowed: 14"},
           {qwen2_vl(), {{"merge_size", 1}}, "merge_size = 1; allowed: 2"},
           {qwen2_vl(), {{"min_pixels", 9000}, {"max_pixels", 800}}, "min_pixels = 9000"},
           {qwen2_vl(), {{"size", no}}, "shortest_edge and longest_edge, pixels in all"},
           {pixtral(), {{"patch_size", 8}}, "patch_size = 8; allowed: 4, as config.json"},
           {pixtral(), {{"size", {{"longest_edge", 25}}}}, "a longest_edge of at most 24"}})
    EXPECT_NE(refusal(config, processor).find(sentence), std::string::npos)
        << processor.dump() << ": " << refusal(config, processor);
}

/// Limits of frames, where a directory says them of videos, or else those of images.
TEST(VideoProcessor, SaysLimits) {
  Json config = qwen2_vl();
  config[kImageProcessor] = {{"min_pixels", 900}, {"max_pixels", 5000}};
  const auto video_of = [](const Json& of) {
    return *make_model_spec(of.dump()).encoders.at(0).patches().video;
  };
  EXPECT_EQ(video_of(qwen2_vl()).pixels.least, 128 * 28 * 28);
  EXPECT_EQ(video_of(config).pixels.least, 900);
  EXPECT_EQ(video_of(config).pixels.most, 5000);
  config[kVideoProcessor] = {{"size", {{"shortest_edge", 700}, {"longest_edge", 8000}}},
                             {"max_frames", 12},
                             {"fps", 2},
                             {"do_sample_frames", true},
                             {"temporal_patch_size", 2},
                             {"video_processor_type", "Qwen2VLVideoProcessor"}};
  EXPECT_EQ(video_of(config).pixels.least, 700);
  EXPECT_EQ(video_of(config).pixels.most, 8000);
  EXPECT_EQ(video_of(config).most_frames, 12);
  config[kVideoProcessor]["weird"] = 1;
  EXPECT_THROW(make_model_spec(config.dump()), WeightsError);
  Json still = llava();
  still[kVideoProcessor] = {{"weird", 1}};  // lies next to a model of images
  EXPECT_NO_THROW(make_model_spec(still.dump()));
}

TEST(VideoProcessor, RefusesWhatImagesDoNotShare) {
  for (const auto& [key, value] :
       std::vector<std::pair<std::string, Json>>{{"image_mean", {0.1, 0.2, 0.3}},
                                                 {"resample", 2},
                                                 {"cap_pixels_per_frame", true},
                                                 {"temporal_patch_size", 3},
                                                 {"do_resize", false},
                                                 {"min_pixels", 1 << 30}}) {
    Json config = qwen2_vl();
    config[kVideoProcessor] = {{key, value}};
    try {
      make_model_spec(config.dump());
      ADD_FAILURE() << key;
    } catch (const WeightsError& error) {
      EXPECT_NE(std::string(error.what()).find(std::string(kVideoProcessor) + "." + key),
                std::string::npos)
          << error.what();
    }
  }
}

}  // namespace
}  // namespace zea::test_image_processor
