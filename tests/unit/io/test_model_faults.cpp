// SPDX-License-Identifier: Apache-2.0
// For any fault in a config or a file next to it, the message holds the path of that file.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "deck/by_module.hpp"
#include "io/composed_source.hpp"
#include "io/model_source.hpp"
#include "io/open_source.hpp"
#include "io/safetensors.hpp"
#include "support/files.hpp"
#include "support/tiny_llava.hpp"

namespace zea::test_model_faults {
namespace {

using Json = nlohmann::json;

/// Values that most keys refuse.
const Json kWrong[] = {"x", -3, 0.5, Json::array(), Json::object(), true, {{"x", 1}}, 1e30};

/// All places in a config, as pointers to them.
std::vector<Json::json_pointer> places_in(const Json& config) {
  std::vector<Json::json_pointer> places;
  const Json flat = config.flatten();
  for (const auto& [path, value] : flat.items()) {
    Json::json_pointer place(path);
    for (; !place.empty(); place.pop_back())
      if (std::ranges::find(places, place) == places.end()) places.push_back(place);
  }
  return places;
}

class ModelFaults : public ::testing::Test {
 protected:
  void write(const std::string& name, const std::string& text) {
    std::filesystem::create_directories(std::filesystem::path(directory_ / name).parent_path());
    write_bytes(directory_ / name, text);
  }
  /// A file of one tensor, so that a directory is one with weights.
  void write_weights(const std::string& directory) {
    const float value = 1;
    SafetensorsWriter writer(directory_ / (directory + "/model.safetensors"),
                             {{"x", {1}, DType::Float32}});
    writer.write("x", 0, 1, &value);
    writer.finish();
  }
  /// Tries each wrong value in each place of `config` as the file `name`; `refused` says why it is.
  size_t try_all(const Json& config, const std::string& name,
                 const std::function<std::string()>& refused) {
    size_t count = 0;
    for (const Json::json_pointer& place : places_in(config))
      for (const Json& value : kWrong) {
        Json changed = config;
        changed[place] = value;
        write(name, changed.dump());
        const std::string found = refused();
        if (found.empty() || contains(found, "tensors are not those")) continue;
        EXPECT_TRUE(contains(found, directory_ / name)) << changed.dump() << "\n" << found;
        EXPECT_FALSE(contains(found, "model config:")) << found;
        ++count;
      }
    write(name, config.dump());
    return count;
  }

  TemporaryDirectory directory_;
};

TEST_F(ModelFaults, ArePathsOfTheirFiles) {
  const auto refused = [&] {
    return error_of([&] { ModelSource(open_weights(directory_ / "m"), ""); });
  };
  const Json processor = {{"image_processor_type", "CLIPImageProcessor"},
                          {"size", {{"shortest_edge", 8}}},
                          {"crop_size", {{"height", 8}, {"width", 8}}},
                          {"do_center_crop", true},
                          {"image_mean", {0.5, 0.5, 0.5}},
                          {"image_std", {0.5, 0.5, 0.5}},
                          {"resample", 3},
                          {"rescale_factor", 0.1}};
  for (const auto& options : {testing::TinyLlava{.audio = true},
                              {.siglip = true},
                              {.text = "phi3"},
                              {.pixtral = true, .merges = true},
                              {.siglip = true, .gemma3 = true}}) {
    const Json config = Json::parse(testing::tiny_llava_config(options));
    write("m/config.json", config.dump());
    write_weights("m");
    EXPECT_TRUE(contains(refused(), "tensors are not those")) << refused();
    EXPECT_GT(try_all(config, "m/config.json", refused), 40u);
  }
  write("m/config.json", testing::tiny_llava_config());
  EXPECT_GT(try_all(processor, "m/preprocessor_config.json", refused), 20u);
  EXPECT_GT(try_all({{"image_processor", processor}}, "m/processor_config.json", refused), 20u);
  std::filesystem::remove(directory_ / "m/processor_config.json");
  std::filesystem::remove(directory_ / "m/preprocessor_config.json");
  EXPECT_GT(try_all({{"eos_token_id", {1, 2}}}, "m/generation_config.json", refused), 1u);
  std::filesystem::remove(directory_ / "m/generation_config.json");
  for (const char* text : {"", "{", "[]", "3", "\"x\"", "{\"a\": 1, \"a\": 2}", "\xff", "nul"}) {
    write("m/config.json", text);
    EXPECT_TRUE(contains(refused(), directory_ / "m/config.json")) << text << refused();
  }
  write("m/config.json", "{\"a\": " + std::string(1000, '[') + std::string(1000, ']') + "}");
  EXPECT_TRUE(contains(refused(), directory_ / "m/config.json")) << refused();
}

TEST_F(ModelFaults, AConfigOfItsOwnIsNamed) {
  write("other/config.json", R"({"model_type": "llama", "hidden_size": "x"})");
  const std::string path = directory_ / "other/config.json";
  const std::string found =
      error_of([&] { ModelSource(nullptr, read_bytes(path), {.config_path = path}); });
  EXPECT_TRUE(contains(found, path + ": config.hidden_size = \"x\"; allowed: an integer")) << found;
}

/// A composed model names the part's file.
TEST_F(ModelFaults, APartsConfigIsNamed) {
  const Json whole = Json::parse(testing::tiny_llava_config());
  const Json text = whole["text_config"], vision = whole["vision_config"];
  write("llm/config.json", text.dump());
  write("vit/config.json", vision.dump());
  const auto refused = [&] {
    return error_of([&] {
      std::vector<ComposedPart> parts;
      parts.push_back({"vision", open_for_plan(directory_ / "vit")});
      parts.push_back({kDecoder, open_for_plan(directory_ / "llm")});
      ModelSource(compose_source(std::move(parts), 1), "");
    });
  };
  EXPECT_EQ(refused(), "");
  EXPECT_GT(try_all(text, "llm/config.json", refused), 20u);
  EXPECT_GT(try_all(vision, "vit/config.json", refused), 20u);
  EXPECT_GT(try_all({{"do_resize", false}, {"size", {{"shortest_edge", 8}}}},
                    "vit/preprocessor_config.json", refused),
            2u);
  for (const char* part : {"llm/config.json", "vit/config.json"}) {
    const std::string config = read_bytes(directory_ / part);
    for (const std::string& text :
         {std::string(), std::string("{"), std::string("[]"), std::string(R"({"model_type": 3})"),
          "{\"a\": " + std::string(100000, '[') + std::string(100000, ']') + "}"}) {
      write(part, text);
      EXPECT_TRUE(contains(refused(), directory_ / part)) << text.substr(0, 20) << refused();
    }
    write(part, config);
  }
}

}  // namespace
}  // namespace zea::test_model_faults
