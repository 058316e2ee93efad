// SPDX-License-Identifier: Apache-2.0
#include "io/model_source.hpp"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "core/dtype.hpp"
#include "spec/parameter_names.hpp"
#include "support/files.hpp"
#include "support/measured_models.hpp"
#include "support/tensors_of.hpp"
#include "support/tiny_kimi_k25.hpp"
#include "support/tiny_llava.hpp"
#include "support/tiny_qwen2_vl.hpp"
#include "support/tiny_qwen3_next.hpp"

namespace zea::test_model_source {
namespace {

using testing::tensors_of;
using testing::tiny_llava_config;
using Names = std::vector<std::string>;

const std::string kNorm = "language_model.model.norm.weight";
const std::string kHead = "language_model.lm_head.weight";

/// Tensors by name; element i of each is i, of `trained` i + 1.
class ListedSource : public WeightsSource {
 public:
  explicit ListedSource(std::vector<TensorInfo> tensors, std::string trained = "",
                        std::string config = "")
      : tensors_(std::move(tensors)), trained_(std::move(trained)), config_(std::move(config)) {}

  std::string describe() const override { return "list"; }
  const std::vector<TensorInfo>& tensors() const override { return tensors_; }
  std::string config_json() const override { return config_; }
  void read(const std::string& name, const Shape&, const Extent& extent, DType dtype,
            void* target) const override {
    EXPECT_TRUE(std::any_of(tensors_.begin(), tensors_.end(), [&](const TensorInfo& tensor) {
      return tensor.name == name;
    })) << name;
    std::vector<double> values(static_cast<size_t>(extent.elements()));
    for (size_t i = 0; i < values.size(); ++i)
      values[i] = static_cast<double>(i + (name == trained_ ? 1 : 0));
    convert_elements(DType::Float64, values.data(), dtype, target, extent.elements());
  }

 private:
  std::vector<TensorInfo> tensors_;
  std::string trained_, config_;
};

/// A model with a tensor per expert and linear.
std::string config_of(const std::string& family) {
  if (family == "internvl") {
    nlohmann::json config = nlohmann::json::parse(testing::measured_model("internvl").config);
    config["text_config"] = nlohmann::json::parse(config_of("qwen3_moe"));
    return config.dump();
  }
  return testing::measured_model(family).config;
}

class ModelSourceTest : public ::testing::Test {
 protected:
  ModelSourceTest() {
    for (const ParamSpec& param : model_.params)
      tensors_.push_back({param.name, param.shape, DType::BFloat16});
  }

  TensorInfo& tensor(const std::string& name) {
    return *std::find_if(tensors_.begin(), tensors_.end(),
                         [&](const TensorInfo& tensor) { return tensor.name == name; });
  }
  void remove(const std::string& name) {
    std::erase_if(tensors_, [&](const TensorInfo& tensor) { return tensor.name == name; });
  }
  ModelSource open(const LoadOptions& options = {}) const {
    return {std::make_unique<ListedSource>(tensors_, trained_), config_, options};
  }
  std::vector<double> read(const ModelSource& source, const std::string& name) const {
    const Shape& shape = model_.params[static_cast<size_t>(model_.param_index(name))].shape;
    std::vector<double> values(static_cast<size_t>(num_elements(shape)));
    source.read(name, shape, whole(shape), DType::Float64, values.data());
    return values;
  }
  bool is_drawn(const ModelSource& source, const std::string& name, uint64_t seed) const {
    const ModelSource drawn(nullptr, config_, {.seed = seed});
    return read(source, name) == read(drawn, name);
  }

  std::string config_ = tiny_llava_config();
  ModelSpec model_ = make_model_spec(config_);
  std::vector<TensorInfo> tensors_;
  std::string trained_;
};

TEST_F(ModelSourceTest, IsTheSourceWhereAllFits) {
  const ModelSource source = open();

  EXPECT_EQ(source.note(), "");
  EXPECT_EQ(source.tensors().size(), model_.params.size());
  EXPECT_EQ(source.tensors().front().dtype, DType::BFloat16);
  EXPECT_EQ(source.config_json(), config_);
  EXPECT_EQ(read(source, kNorm)[7], 7);
}

TEST_F(ModelSourceTest, ReadsOtherSpellings) {
  tensor(kNorm).name = "model.language_model.norm.weight";
  tensor(kHead).name = "lm_head.weight";
  tensors_.push_back({"vision_tower.vision_model.embeddings.position_ids", {5}, DType::Int64});

  const ModelSource source = open();

  EXPECT_EQ(read(source, kNorm)[7], 7);
  EXPECT_EQ(read(source, kHead)[7], 7);
  EXPECT_TRUE(
      std::is_sorted(source.tensors().begin(), source.tensors().end(),
                     [](const TensorInfo& a, const TensorInfo& b) { return a.name < b.name; }));
}

TEST_F(ModelSourceTest, RefusesTwoTensorsForOneParameter) {
  tensors_.push_back({"lm_head.weight", tensor(kHead).shape, DType::Float32});

  EXPECT_TRUE(contains(error_of([&] { open({.strict = false}); }), "are both called \"" + kHead));
}

TEST_F(ModelSourceTest, PassesOverTheHeadOfTiedEmbeddings) {
  config_ = tiny_llava_config({.tied = true});

  EXPECT_EQ(open().note(), "");
  EXPECT_EQ(make_model_spec(config_).param_index(kHead), -1);
  trained_ = kHead;
  const std::string error = error_of([&] { open(); });
  EXPECT_TRUE(contains(error, kHead + " differs from language_model.model.embed_tokens.weight"))
      << error;
}

TEST_F(ModelSourceTest, ListsEveryFaultAtOnce) {
  remove(kNorm);
  tensor(kHead).shape = {3, 4};
  tensor("multi_modal_projector.linear_1.bias").dtype = DType::Int32;
  tensors_.push_back({"extra", {2}, DType::Float32});

  const std::string error = error_of([&] { open(); });

  for (const std::string& line :
       {"missing: " + kNorm + " (24)",
        "wrong shape: " + kHead + " is (3, 4); the model wants (40, 24)",
        std::string(
            "wrong type: multi_modal_projector.linear_1.bias is int32; allowed: floating types"),
        std::string("unexpected: extra (2)")})
    EXPECT_TRUE(contains(error, "\n  " + line)) << line << "\nis not in " << error;
  const ModelSource source = open({.strict = false, .seed = 9});
  EXPECT_TRUE(contains(source.note(), "unexpected: extra (2)")) << source.note();
  EXPECT_TRUE(contains(source.note(), ", 3 are initial values of seed 9")) << source.note();
  for (const std::string& name : {kNorm, kHead}) EXPECT_TRUE(is_drawn(source, name, 9)) << name;
  EXPECT_FALSE(is_drawn(source, "language_model.model.embed_tokens.weight", 9));
}

TEST_F(ModelSourceTest, LoadsTheModulesThatAreAskedFor) {
  remove(kNorm);  // of a module that is not asked for
  for (const char* module : {"vision", "projector"}) {
    const ModelSource source = open({.modules = Names{module}, .seed = 3});
    for (size_t p = 0; p < model_.params.size(); ++p) {
      const ParamSpec& param = model_.params[p];
      const bool is_projector = param.name.starts_with("multi_modal_projector.");
      const bool is_vision = param.name.starts_with("vision_tower.");
      const bool wanted = module == std::string("vision") ? is_vision : is_projector;
      EXPECT_EQ(is_drawn(source, param.name, 3), !wanted) << param.name;
    }
  }
  EXPECT_TRUE(contains(error_of([&] { open({.modules = Names{"llm"}}); }), "missing: " + kNorm));
}

/// Mergers of features of several depths among them; the last norm of an encoder is none.
TEST(LoadModule, OfAProjectorIsSaidByItsUnits) {
  for (const std::string& config :
       {testing::tiny_qwen3_vl_config(), testing::tiny_qwen2_vl_config(),
        tiny_llava_config({.siglip = true, .audio = true}),
        tiny_llava_config({.tied = true, .image_size = 24, .siglip = true, .gemma3 = true})}) {
    const ModelSpec model = make_model_spec(config);
    for (size_t p = 0; p < model.params.size(); ++p) {
      const std::string& name = model.params[p].name;
      const bool is_projector = contains(name, "merger") || contains(name, "projector");
      EXPECT_EQ(load_module(model, static_cast<int>(p)),
                is_projector ? "projector" : model.params[p].module)
          << name;
    }
  }
}

/// Published files of Qwen3-VL-MoE have (experts, in, out), those of transformers 5 (experts, out,
/// in). If one matrix is square, the other shows the order.
TEST(ModelSource, KeepsTheOrderOfStackedExperts) {
  const std::string experts = "model.language_model.layers.1.mlp.experts.";
  nlohmann::json square = nlohmann::json::parse(testing::tiny_qwen3_vl_moe_config());
  square["text_config"]["moe_intermediate_size"] =
      square["text_config"]["hidden_size"].get<int64_t>() / 2;
  for (const nlohmann::json& config :
       {nlohmann::json::parse(testing::tiny_qwen3_vl_moe_config()), square})
    for (const char* order : {"in_out", "out_in"}) {
      nlohmann::json known = config;
      known[kWeightsFiles][kExperts] = order;
      const ModelSource source(
          std::make_unique<ListedSource>(tensors_of(make_model_spec(known.dump()))), config.dump());
      EXPECT_EQ(source.note(), "");
      const ModelSpec& model = source.model();
      const Shape up = model.params[model.param_index(experts + "gate_up_proj")].shape,
                  down = model.params[model.param_index(experts + "down_proj")].shape;
      const int64_t hidden = model.decoder.block.hidden,
                    inner = model.decoder.block.mlps.back().intermediate;
      const bool is_out_in = order == std::string("out_in");
      EXPECT_EQ(up,
                is_out_in ? (Shape{up[0], 2 * inner, hidden}) : (Shape{up[0], hidden, 2 * inner}));
      EXPECT_EQ(down, is_out_in ? (Shape{up[0], hidden, inner}) : (Shape{up[0], inner, hidden}));
      EXPECT_EQ(nlohmann::json::parse(source.config_json()).contains(kWeightsFiles), is_out_in);
    }
}

/// Transformers 5 stacks the experts of every family with save_original_format=False.
TEST(ModelSource, ReadsStackedExpertsOfEveryFamily) {
  for (const std::string family :
       {"mixtral", "qwen2_moe", "qwen3_moe", "olmoe", "qwen3_next", "glm4_moe", "deepseek_v3",
        "glm4v_moe", "qwen3_omni_moe_thinker", "internvl"}) {
    const std::string config = config_of(family);
    const int split = std::ranges::count_if(
        make_model_spec(config).params,
        [](const ParamSpec& param) { return contains(param.name, ".experts.0."); });
    EXPECT_GT(split, 0) << family;
    nlohmann::json known = nlohmann::json::parse(config);
    known[kWeightsFiles][kExperts] = "out_in";
    const ModelSource source(
        std::make_unique<ListedSource>(tensors_of(make_model_spec(known.dump()))), config);
    EXPECT_EQ(source.note(), "") << family;
    EXPECT_EQ(nlohmann::json::parse(source.config_json()), known) << family;
    EXPECT_GT(std::ranges::count(source.model().params, true, &ParamSpec::stacks_experts), 0)
        << family;
  }
}

TEST(ModelSource, RefusesAnUnknownOrderOfExperts) {
  nlohmann::json config = nlohmann::json::parse(testing::tiny_qwen3_vl_moe_config());
  config[kWeightsFiles][kExperts] = "sideways";
  EXPECT_TRUE(contains(error_of([&] { make_model_spec(config.dump()); }),
                       "config.weights_files.experts = sideways; allowed: split, out_in, in_out"));
}

TEST(ModelSource, CarriesTheHeadOfMoreTokens) {
  const std::string config = testing::tiny_qwen3_5_config();
  std::vector<TensorInfo> tensors = tensors_of(make_model_spec(config), DType::BFloat16);
  tensors.push_back({"mtp.fc.weight", {24, 48}, DType::BFloat16});
  const ModelSource source(std::make_unique<ListedSource>(tensors), config);
  const int carried = source.model().param_index("mtp.fc.weight");
  ASSERT_GE(carried, 0);
  EXPECT_FALSE(source.model().params[carried].used);
  EXPECT_EQ(source.tensors().size(), tensors.size());
  EXPECT_EQ(source.note(), "");
  // The config that goes into weights files has it, and is read again.
  EXPECT_EQ(make_model_spec(source.config_json()).params.size(), source.model().params.size());
}

TEST(ModelSource, ReadsExpertsAsItsFilesHoldThem) {
  const std::string experts = "model.language_model.layers.1.mlp.experts.";
  for (const std::string& config :
       {testing::tiny_qwen3_5_config("qwen3_5_moe"), testing::tiny_glm46v_config()})
    for (const bool are_split : {false, true}) {
      nlohmann::json known = nlohmann::json::parse(config);
      if (are_split) known[kWeightsFiles]["splits_experts"] = true;
      std::vector<TensorInfo> tensors = tensors_of(make_model_spec(known.dump()));
      const ModelSource source(std::make_unique<ListedSource>(tensors), config);
      EXPECT_EQ(source.model().param_index(experts + "gate_up_proj") < 0, are_split);
      EXPECT_EQ(source.model().param_index(experts + "5.up_proj.weight") < 0, !are_split);
      EXPECT_EQ(source.note(), "");
      if (!are_split) continue;
      const std::string omitted = experts + "2.down_proj.weight";
      std::erase_if(tensors, [&](const TensorInfo& tensor) { return tensor.name == omitted; });
      EXPECT_TRUE(
          contains(error_of([&] { ModelSource(std::make_unique<ListedSource>(tensors), config); }),
                   omitted));
    }
}

/// Queries and experts of the running model differ from those of published files.
TEST(ModelSource, ReadsNamesAsItsFilesSpellThem) {
  const std::string config = testing::tiny_kimi_k25_config();
  for (const std::string names : {"", kSavedNames, kRunningNames}) {
    nlohmann::json known = nlohmann::json::parse(config);
    if (!names.empty()) known[kWeightsFiles]["names"] = names;
    std::vector<TensorInfo> tensors = tensors_of(make_model_spec(known.dump()));
    for (TensorInfo& tensor : tensors) tensor.name = name_in_files("kimi_k25", names, tensor.name);
    const ModelSource source(std::make_unique<ListedSource>(tensors), config);
    EXPECT_EQ(source.model().param_index("vision_tower.encoder.blocks.0.wqkv.weight") < 0,
              names == kRunningNames);
    EXPECT_EQ(source.note(), "");
    EXPECT_EQ(nlohmann::json::parse(source.config_json()).contains(kWeightsFiles), !names.empty());
  }
}

/// A weights file has canonical names; model.config replaces the config of the file.
TEST(ModelSource, ReadsNamesOfAWeightsFileWithAnotherConfig) {
  const std::string running = testing::tiny_kimi_k25_config({}, true);
  const std::vector<TensorInfo> tensors = tensors_of(make_model_spec(running));
  const ModelSource source(std::make_unique<ListedSource>(tensors, "", running),
                           testing::tiny_kimi_k25_config());
  EXPECT_EQ(source.note(), "");
  EXPECT_GE(source.model().param_index("vision_tower.encoder.blocks.0.attn.q_proj.weight"), 0);
  EXPECT_EQ(nlohmann::json::parse(source.config_json())[kWeightsFiles]["names"], kRunningNames);
}

TEST_F(ModelSourceTest, SaysWhatItCannotDo) {
  EXPECT_TRUE(contains(error_of([&] { ModelSource(std::make_unique<ListedSource>(tensors_), ""); }),
                       "list: has no config.json; name the model's in model.config"));
  tensors_ = {{"x", {2}, DType::Float32}};
  EXPECT_TRUE(contains(error_of([&] { open({.strict = false}); }), "none of its tensors"));
  const std::string where =
      error_of([&] { read(open({.modules = Names{}, .strict = false}), kNorm); });
  EXPECT_EQ(where, "");  // nothing is wanted: all is drawn
}

}  // namespace
}  // namespace zea::test_model_source
