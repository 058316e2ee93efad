// SPDX-License-Identifier: Apache-2.0
// Every unit kind's forward and backward takes the bytes that the plan declares for it: what its
// tensors take is counted, at sizes to which nothing was fitted.
#include "zea/plan/units/unit_memory.hpp"

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "support/kernel_test.hpp"
#include "support/made_up_models.hpp"
#include "support/tiny_llava.hpp"
#include "support/tiny_qwen2_vl.hpp"
#include "zea/batch/make_microbatch.hpp"
#include "zea/kernels/matmul.hpp"
#include "zea/model/unit.hpp"
#include "zea/parallel/sharded_buffer.hpp"
#include "zea/parallel/tensor_bytes.hpp"

namespace zea::test_unit_memory {
namespace {

using testing::shrink_images;

constexpr double kTolerance = 0.05;
constexpr int64_t kSmallTensors = 1024;  ///< bytes of scalars and lists that nobody declares

struct Model {
  const char* name;
  std::string config;
  void (*remake)(ModelSpec&) = nullptr;
};

std::string llava_config(bool variant) {
  testing::TinyLlava tiny{.tied = variant, .kv_heads = variant ? 4 : 1, .layers = 1};
  if (variant) tiny.feature_layer = "[0, -1, 1]";
  if (variant) tiny.select = "full";
  nlohmann::json config = nlohmann::json::parse(testing::tiny_llava_config(tiny));
  auto& text = config["text_config"];
  text["hidden_size"] = 116;
  text["intermediate_size"] = 284;
  text["head_dim"] = 30;
  text["vocab_size"] = 1307;
  text["attention_bias"] = text["mlp_bias"] = variant;
  auto& vision = config["vision_config"];
  vision["hidden_size"] = 78;
  vision["intermediate_size"] = 202;
  vision["image_size"] = variant ? 60 : 20;  // 226 tokens: too long for our own kernels
  vision["hidden_act"] = variant ? "relu" : "quick_gelu";
  config["projector_hidden_act"] = variant ? "relu" : "gelu";
  return config.dump();
}

std::string siglip_config() {
  nlohmann::json config = nlohmann::json::parse(testing::tiny_llava_config(
      {.layers = 1, .vision_hidden = 78, .image_size = 48, .siglip = true}));
  auto& text = config["text_config"];
  text["hidden_size"] = 116;
  text["intermediate_size"] = 284;
  config["vision_config"]["intermediate_size"] = 202;
  return config.dump();
}

/// LLaVA with registers, layer scale and a gated MLP.
std::string dinov2_config() {
  nlohmann::json config = nlohmann::json::parse(testing::tiny_llava_config({.layers = 1}));
  config["text_config"]["hidden_size"] = 116;
  config["vision_config"] = {{"model_type", "dinov2_with_registers"},
                             {"hidden_size", 78},
                             {"num_hidden_layers", 1},
                             {"num_attention_heads", 2},
                             {"image_size", 20},
                             {"patch_size", 4},
                             {"num_register_tokens", 3},
                             {"use_swiglu_ffn", true}};
  config["vision_feature_layer"] = -1;
  return config.dump();
}

/// Tiles of 6 x 6 patches, four of which are a feature.
std::string internvl_config() {
  const nlohmann::json llava = nlohmann::json::parse(testing::tiny_llava_config({.layers = 1}));
  nlohmann::json text = llava["text_config"];
  text["hidden_size"] = 116;
  text["intermediate_size"] = 284;
  return nlohmann::json{{"model_type", "internvl"},
                        {"image_token_id", 3},
                        {"text_config", text},
                        {"vision_config",
                         {{"hidden_size", 78},
                          {"intermediate_size", 202},
                          {"num_hidden_layers", 1},
                          {"num_attention_heads", 2},
                          {"image_size", 24},
                          {"patch_size", 4},
                          {"use_qk_norm", true},
                          {"norm_type", "rms_norm"}}}}
      .dump();
}

/// Images of up to four tiles beside the whole one, with learned ends of rows.
std::string llava_next_config() {
  nlohmann::json config = nlohmann::json::parse(testing::tiny_llava_config({.layers = 1}));
  config["model_type"] = "llava_next";
  config["image_grid_pinpoints"] = {{20, 40}, {40, 40}};
  config["text_config"]["hidden_size"] = 116;
  config["vision_config"].update({{"hidden_size", 78}, {"intermediate_size", 202}});
  config["vision_config"]["image_size"] = 20;
  return config.dump();
}

void cut_into_few(ModelSpec& model) {
  std::get<PatchInput>(model.encoders.at(0).input).tiles.most = 4;
}

nlohmann::json wide_qwen_vl(const std::string& tiny) {
  nlohmann::json config = nlohmann::json::parse(tiny);
  auto& text = config["text_config"];
  text["hidden_size"] = 120;
  text["intermediate_size"] = 284;
  text["vocab_size"] = 1307;
  text["num_hidden_layers"] = config["vision_config"]["depth"] = 1;
  text["rope_parameters"]["mrope_section"] = std::vector<int>{8, 10, 12};
  return config;
}

std::string qwen2_vl_config() {
  nlohmann::json config = wide_qwen_vl(testing::tiny_qwen2_vl_config());
  config["vision_config"]["hidden_size"] = 120;
  config["vision_config"]["embed_dim"] = 72;
  return config.dump();
}

/// Its only block sees windows.
std::string qwen2_5_vl_config() {
  nlohmann::json config = wide_qwen_vl(testing::tiny_qwen2_5_vl_config());
  config["vision_config"].update(
      {{"hidden_size", 72}, {"intermediate_size", 164}, {"out_hidden_size", 120}});
  return config.dump();
}

std::string qwen3_vl_config() {
  nlohmann::json config = nlohmann::json::parse(testing::tiny_qwen3_vl_config());
  config["text_config"].update({{"hidden_size", 120},
                                {"intermediate_size", 284},
                                {"vocab_size", 1307},
                                {"num_hidden_layers", 1},
                                {"head_dim", 60}});
  config["text_config"]["rope_parameters"]["mrope_section"] = std::vector<int>{10, 10, 10};
  config["vision_config"].update({{"hidden_size", 72},
                                  {"intermediate_size", 164},
                                  {"out_hidden_size", 120},
                                  {"depth", 1},
                                  {"deepstack_visual_indexes", {0}}});
  return config.dump();
}

std::string gemma3_config() {
  nlohmann::json config = nlohmann::json::parse(testing::tiny_llava_config({.tied = true,
                                                                            .layers = 1,
                                                                            .vision_hidden = 78,
                                                                            .vocabulary = 1307,
                                                                            .image_size = 48,
                                                                            .siglip = true,
                                                                            .gemma3 = true}));
  auto& text = config["text_config"];
  text["hidden_size"] = 116;
  text["intermediate_size"] = 284;
  text["head_dim"] = 30;
  config["vision_config"]["intermediate_size"] = 202;
  return config.dump();
}

std::string mistral3_config() {
  nlohmann::json config = nlohmann::json::parse(testing::tiny_llava_config(
      {.layers = 1, .vision_hidden = 76, .image_size = 48, .pixtral = true, .merges = true}));
  auto& text = config["text_config"];
  text["hidden_size"] = 116;
  text["intermediate_size"] = 284;
  config["vision_config"]["intermediate_size"] = 202;
  return config.dump();
}

std::string audio_config(bool has_vision) {
  nlohmann::json config = nlohmann::json::parse(testing::tiny_llava_config(
      {.layers = 1, .vision = has_vision, .audio = true, .audio_layers = 1}));
  auto& text = config["text_config"];
  text["hidden_size"] = 116;
  text["intermediate_size"] = 284;
  auto& audio = config["audio_config"];
  audio["d_model"] = 78;
  audio["encoder_ffn_dim"] = 202;
  audio["num_mel_bins"] = 17;
  audio["max_source_positions"] = has_vision ? 21 : 131;
  return config.dump();
}

/// Clips of their own length, two of whose positions are averaged; or three side by side.
std::string heard_config(bool averages) {
  const nlohmann::json text{{"model_type", "llama"},
                            {"hidden_size", 116},
                            {"intermediate_size", 284},
                            {"num_hidden_layers", 1},
                            {"num_attention_heads", 4},
                            {"num_key_value_heads", 2},
                            {"max_position_embeddings", 99},
                            {"head_dim", 28},
                            {"rms_norm_eps", 1e-5},
                            {"rope_theta", 1e4},
                            {"vocab_size", 1111}};
  nlohmann::json audio{{"num_mel_bins", 17}, {"max_source_positions", averages ? 131 : 132}};
  if (averages)
    audio.update({{"model_type", "qwen2_audio_encoder"},
                  {"d_model", 78},
                  {"encoder_ffn_dim", 202},
                  {"encoder_layers", 1},
                  {"encoder_attention_heads", 2}});
  else
    audio.update({{"model_type", "voxtral_encoder"},
                  {"hidden_size", 78},
                  {"intermediate_size", 234},
                  {"num_hidden_layers", 1},
                  {"num_attention_heads", 2}});
  return nlohmann::json{{"model_type", averages ? "qwen2_audio" : "voxtral"},
                        {"audio_token_id", 4},
                        {"audio_config", audio},
                        {"text_config", text}}
      .dump();
}

std::string gpt2_config(bool tied) {
  return nlohmann::json{{"model_type", "gpt2"},
                        {"n_embd", 92},
                        {"n_layer", 1},
                        {"n_head", 4},
                        {"n_positions", 640},
                        {"vocab_size", 1111},
                        {"activation_function", tied ? "gelu_new" : "relu"},
                        {"tie_word_embeddings", tied}}
      .dump();
}

/// Llama's decoder in another family's ways.
std::string decoder_config(const std::string& family, bool is_tied) {
  return nlohmann::json{
      {"model_type", family},   {"hidden_size", 116},       {"intermediate_size", 284},
      {"num_hidden_layers", 1}, {"num_attention_heads", 4}, {"num_key_value_heads", 2},
      {"head_dim", 30},         {"vocab_size", 1307},       {"tie_word_embeddings", is_tied}}
      .dump();
}

/// Puts an item of `encoder` at `begin`.
void add_item(Sample& sample, const ModelSpec& model, const EncoderSpec& encoder, int64_t begin,
              const ItemShape& shape) {
  std::fill_n(sample.tokens.begin() + begin, shape.features, encoder.placeholder);
  std::fill_n(sample.loss_mask.begin() + begin, shape.features, 0);
  sample.items.emplace_back();
  if (encoder.varies()) sample.items.back().shape = shape;
  sample.items.back().modality = encoder.modality();
  sample.items.back().kind = model.encoder_index(encoder.name);
}

/// Of the i-th item of a sample: where they vary, each another.
ItemShape shape_of(const EncoderSpec& encoder, int64_t i) {
  if (!encoder.varies()) return encoder.item_shape();
  if (encoder.modality() == Modality::Audio)
    return encoder.clip_shape(encoder.mels().columns() * (4 - i) / 4);
  const int64_t largest = encoder.patches().image_size;
  return encoder.item_shape(ImageSize{largest * (4 - i) / 4, largest * (2 + i) / 4});
}

/// Samples of these lengths, each with as many items as fit, up to `items` for each encoder.
LoadedMicrobatch make_samples(const ModelSpec& model, const std::vector<int64_t>& lengths,
                              int64_t items) {
  LoadedMicrobatch loaded;
  for (int64_t length : lengths) {
    Sample sample;
    sample.tokens.assign(length, 5);
    sample.loss_mask.assign(length, 1);
    int64_t next = 1;
    for (const EncoderSpec& encoder : model.encoders) {
      for (int64_t i = 0; i < items; ++i) {
        const ItemShape shape = shape_of(encoder, i);
        if (next + shape.features > length) break;
        add_item(sample, model, encoder, next, shape);
        next += shape.features;
      }
    }
    loaded.items += list_items(sample.items);
    loaded.samples.push_back(std::move(sample));
  }
  for (const EncoderSpec& encoder : model.encoders) {
    int64_t values = 0;
    for (const ItemShape& shape : loaded.items.shapes(model.encoder_index(encoder.name), encoder))
      values += encoder.modality() == Modality::Image
                    ? shape.tiles * encoder.patches().patches_of(shape) *
                          encoder.patches().pixels_of_patch()
                    : encoder.mels().mel_bins * encoder.mels().columns();
    loaded.values.emplace_back(values, 0.5F);
  }
  return loaded;
}

MicrobatchSizes sizes_of(const ModelSpec& model, const LoadedMicrobatch& loaded) {
  std::vector<SampleIndex> samples;
  for (const Sample& sample : loaded.samples) {
    SampleIndex index{.tokens = static_cast<int64_t>(sample.tokens.size()),
                      .items = list_items(sample.items)};
    for (size_t i = 1; i < sample.loss_mask.size(); ++i) index.targets += sample.loss_mask[i];
    samples.push_back(index);
  }
  return microbatch_sizes(model, samples);
}

/// A unit with its parameters, called by itself.
class Counted {
 public:
  Counted(const ModelSpec& model, const UnitSpec& unit, DType type)
      : model_(model), unit_(unit), type_(to_torch(type)) {
    for (size_t i = 0; i < unit.params.size(); ++i) {
      const ParamSpec* spec = &model.params[unit.params[i]];
      Shape shape = spec->shape;
      for (; spec->fused_with_next; spec = &model.params[unit.params[i]])
        shape[0] += model.params[unit.params[++i]].shape[0];
      parameters_.push_back(
          std::make_unique<Parameter>(spec->name, shape, spec->trainable, at::kCPU));
      parameters_.back()->set_value(at::full(shape, 0.01, type_));
      if (spec->trainable) parameters_.back()->set_gradient(at::zeros(shape, at::kFloat));
      list_.push_back(parameters_.back().get());
    }
  }

  UnitMemory run(const UnitInputs& inputs, const Microbatch& microbatch, TensorBytes& bytes,
                 bool keeps_graph) const {
    UnitMemory counted;
    const int64_t before = bytes.now();
    bytes.reset_peak();
    at::Tensor output;
    {
      at::AutoGradMode mode(keeps_graph);
      const UnitOutput made =
          run_unit(model_, unit_, list_, inputs, microbatch, HeadOutput::Loss, Layers());
      output = made.loss.defined() ? made.loss : made.value;
    }
    counted.output_bytes = static_cast<int64_t>(output.nbytes());
    counted.forward_peak_bytes = bytes.peak() - before;
    counted.saved_bytes = bytes.now() - before - counted.output_bytes;
    if (output.requires_grad()) run_backward(output, inputs, bytes, before, counted);
    return counted;
  }

 private:
  static void run_backward(const at::Tensor& output, const UnitInputs& inputs, TensorBytes& bytes,
                           int64_t before, UnitMemory& counted) {
    const at::Tensor gradient = at::ones_like(output);
    bytes.reset_peak();
    torch::autograd::backward({output}, {gradient});
    counted.backward_peak_bytes = bytes.peak() - before - 2 * counted.output_bytes;
    for (const auto& input : inputs)
      if (input)
        counted.input_gradient_bytes.push_back(
            input->grad().defined() ? static_cast<int64_t>(input->grad().nbytes()) : 0);
  }

  const ModelSpec& model_;
  const UnitSpec& unit_;
  at::ScalarType type_;
  std::vector<std::unique_ptr<Parameter>> parameters_;
  std::vector<Parameter*> list_;
};

/// Rows and width of what a unit gives.
std::pair<int64_t, int64_t> output_shape(const ModelSpec& model, const UnitSpec& unit,
                                         const MicrobatchSizes& sizes) {
  if (unit.module == "llm") return {sizes.tokens, model.decoder.block.hidden};
  const EncoderSizes& items = sizes.encoders[unit.encoder];
  if (unit.kind == UnitKind::Projector) return {items.features, model.decoder.block.hidden};
  return {items.tokens, model.hidden(unit.module)};
}

using UnitMemoryTest = testing::KernelTest<>;

/// `least`: declared if the library took no memory of its own; how much it takes, if any, is its
/// choice and the processor's.
void expect_near(int64_t least, int64_t declared, int64_t counted, const std::string& what) {
  const auto tolerance =
      static_cast<int64_t>(kTolerance * static_cast<double>(counted)) + kSmallTensors;
  EXPECT_LE(least, counted + tolerance) << what;
  EXPECT_GE(declared, counted - tolerance) << what;
}

/// One call of every unit of a model, with and without gradients of its inputs.
struct Check {
  const Model& model;
  bool trains;
  DType type;
  std::vector<int64_t> lengths;
  bool keeps_graph, inputs_need_gradient;

  std::string text() const {
    return std::string(model.name) + (trains ? " trained" : " frozen") + " " + dtype_name(type) +
           " longest " + std::to_string(lengths[0]) + (keeps_graph ? "" : " without graph") +
           (inputs_need_gradient ? "" : " inputs without gradient");
  }

  void run(TensorBytes& bytes) const {
    ModelSpec spec = make_model_spec(
        model.config,
        {.encoders = {{"vision", {trains, trains}}, {"audio", {trains, trains}}}, .llm = trains});
    if (model.remake) model.remake(spec);
    const LoadedMicrobatch loaded = make_samples(spec, lengths, 3);
    const Microbatch microbatch = make_microbatch(
        loaded, spec,
        {.dtype = to_torch(type), .encoder_dtypes = {to_torch(type), to_torch(type)}});
    const MicrobatchSizes sizes = sizes_of(spec, loaded);
    ASSERT_EQ(sizes.targets, microbatch.targets);
    std::set<std::pair<std::string, UnitKind>> seen;
    for (const UnitSpec& unit : spec.units)
      if (runs(unit, sizes) && seen.insert({unit.module, unit.kind}).second)
        run_unit_of(spec, unit, sizes, microbatch, bytes);
  }

  static bool runs(const UnitSpec& unit, const MicrobatchSizes& sizes) {
    return unit.module == "llm" || sizes.items.of(unit.encoder) > 0;
  }

  void run_unit_of(const ModelSpec& spec, const UnitSpec& unit, const MicrobatchSizes& sizes,
                   const Microbatch& microbatch, TensorBytes& bytes) const {
    UnitInputs inputs;
    UnitCall call{.keeps_graph = keeps_graph, .inputs_need_gradient = {}, .inputs_present = {}};
    for (const UnitInput& input : unit.inputs) {
      call.inputs_need_gradient.push_back(inputs_need_gradient);
      call.inputs_present.push_back(runs(spec.units[input.unit], sizes));
      if (!call.inputs_present.back()) {
        inputs.emplace_back();
        continue;
      }
      const auto [rows, width] = output_shape(spec, spec.units[input.unit], sizes);
      inputs.emplace_back(at::full({rows, width}, 0.01, to_torch(type)));
      inputs.back()->set_requires_grad(inputs_need_gradient);
    }
    UnitTypes types{.param = type, .products = narrow_products()};
    const UnitMemory declared = unit_memory(spec, unit, sizes, types, call);
    types.library_block_bytes = 0;
    const UnitMemory least = unit_memory(spec, unit, sizes, types, call);
    const UnitMemory counted =
        Counted(spec, unit, type).run(inputs, microbatch, bytes, keeps_graph);
    const std::string what = unit.module + " " + unit_kind_name(unit.kind) + " of " + text();
    EXPECT_EQ(declared.output_bytes, counted.output_bytes) << what;
    expect_near(least.forward_peak_bytes, declared.forward_peak_bytes, counted.forward_peak_bytes,
                what + ": forward peak");
    if (!keeps_graph) return;
    expect_near(declared.saved_bytes, declared.saved_bytes, counted.saved_bytes, what + ": saved");
    expect_near(least.backward_peak_bytes, declared.backward_peak_bytes,
                counted.backward_peak_bytes, what + ": backward peak");
    if (counted.input_gradient_bytes.empty()) return;
    EXPECT_EQ(declared.input_gradient_bytes, counted.input_gradient_bytes) << what;
  }
};

TEST_F(UnitMemoryTest, EveryKindTakesWhatItDeclares) {
  const Model models[] = {{"llava", llava_config(false)},
                          {"llava with taps, biases and full attention", llava_config(true)},
                          {"llava with images of any size, four patches a feature", siglip_config(),
                           testing::merge_images_of_any_size},
                          {"llava with registers", dinov2_config()},
                          {"internvl", internvl_config(), cut_into_few},
                          {"llava_next", llava_next_config()},
                          {"qwen2_vl", qwen2_vl_config(), shrink_images},
                          {"qwen2_5_vl", qwen2_5_vl_config(), shrink_images},
                          {"qwen3_vl", qwen3_vl_config(), shrink_images},
                          {"gemma3", gemma3_config()},
                          {"mistral3", mistral3_config()},
                          {"llava with audio", audio_config(true)},
                          {"llava with long clips and no images", audio_config(false)},
                          {"clips of their own length, averaged", heard_config(true)},
                          {"three positions of sound side by side", heard_config(false)},
                          {"gpt2", gpt2_config(true)},
                          {"gpt2 untied", gpt2_config(false)},
                          {"qwen3", decoder_config("qwen3", false)},
                          {"gemma", decoder_config("gemma", true)},
                          {"windows", decoder_config("mistral", false), testing::see_windows}};
  TensorBytes bytes;
  for (const Model& model : models)
    for (const bool trained : {true, false})
      for (const DType type : {DType::Float32, DType::BFloat16})
        for (const std::vector<int64_t>& lengths :
             {std::vector<int64_t>{163, 101, 158, 59}, {559, 301, 533}})
          for (const bool gradients : {true, false})
            Check{model, trained, type, lengths, true, gradients}.run(bytes);
}

TEST_F(UnitMemoryTest, AndWithoutAGraph) {
  const Model models[] = {{"llava", llava_config(true)},
                          {"llava with audio", audio_config(true)},
                          {"gpt2", gpt2_config(true)}};
  TensorBytes bytes;
  for (const Model& model : models)
    for (const DType type : {DType::Float32, DType::BFloat16})
      for (const std::vector<int64_t>& lengths :
           {std::vector<int64_t>{163, 101, 158, 59}, {559, 301, 533}})
        Check{model, true, type, lengths, false, true}.run(bytes);
}

}  // namespace
}  // namespace zea::test_unit_memory
