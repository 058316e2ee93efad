// SPDX-License-Identifier: Apache-2.0
// Every unit kind's forward and backward takes the bytes that the plan declares for it: the bytes
// of its tensors are counted, at sizes to which nothing was fitted.
#include "estimate/unit_memory.hpp"

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <set>

#include "batch/make_microbatch.hpp"
#include "model/unit.hpp"
#include "parallel/device_memory.hpp"
#include "parallel/sharded_buffer.hpp"
#include "support/kernel_test.hpp"
#include "support/measured_models.hpp"

namespace zea::test_unit_memory {
namespace {

using testing::MeasuredModel;

constexpr double kTolerance = 0.05;
constexpr int64_t kSmallTensors = 1024;  ///< bytes of scalars and lists that nobody declares

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

/// Returns the shape of the i-th item of a sample; each differs if they vary.
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
                    : encoder.mels().mel_bins * shape.mel_columns;
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

void run_backward(const at::Tensor& output, const UnitInputs& inputs, TensorBytes& bytes,
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

UnitMemory count(const LoneUnit& unit, const UnitInputs& inputs, const Microbatch& microbatch,
                 TensorBytes& bytes, const UnitCall& call) {
  UnitMemory counted;
  const int64_t before = bytes.now();
  bytes.reset_peak();
  at::Tensor output;
  {
    at::AutoGradMode mode(call.keeps_graph);
    output = unit.output(inputs, microbatch, call.is_selective);
  }
  counted.output_bytes = static_cast<int64_t>(output.nbytes());
  counted.forward_peak_bytes = bytes.peak() - before;
  counted.saved_bytes = bytes.now() - before - counted.output_bytes;
  if (output.requires_grad()) run_backward(output, inputs, bytes, before, counted);
  return counted;
}

/// Returns the gradients of a unit's inputs and parameters.
std::vector<at::Tensor> gradients_of(const LoneUnit& unit, const UnitInputs& inputs,
                                     const Microbatch& microbatch, bool is_selective) {
  for (const auto& input : inputs)
    if (input) input->mutable_grad().reset();
  for (Parameter* parameter : unit.parameters())
    if (parameter->trainable()) parameter->gradient().zero_();
  const at::Tensor output = unit.output(inputs, microbatch, is_selective);
  torch::autograd::backward({output}, {at::ones_like(output)});
  std::vector<at::Tensor> gradients;
  for (const auto& input : inputs)
    if (input && input->grad().defined()) gradients.push_back(input->grad().clone());
  for (Parameter* parameter : unit.parameters())
    if (parameter->trainable()) gradients.push_back(parameter->gradient().clone());
  return gradients;
}

/// Returns rows and width of a unit's output.
std::pair<int64_t, int64_t> output_shape(const ModelSpec& model, const UnitSpec& unit,
                                         const MicrobatchSizes& sizes) {
  if (unit.module == "llm") return {sizes.tokens, model.output_width(unit, 1)};
  const EncoderSizes& items = sizes.encoders[unit.encoder];
  if (unit.kind == UnitKind::Projector) return {items.features, model.decoder.block.hidden};
  return {items.tokens, model.hidden(unit.module)};
}

using UnitMemoryTest = testing::KernelTest<>;

/// `scratch`: the part of the declared bytes that a GEMM library need not take.
void expect_near(int64_t declared, int64_t scratch, int64_t counted, const std::string& what) {
  const auto tolerance =
      static_cast<int64_t>(kTolerance * static_cast<double>(counted)) + kSmallTensors;
  EXPECT_LE(declared - scratch, counted + tolerance) << what;
  EXPECT_GE(declared, counted - tolerance) << what;
}

/// One call of every unit of a model, with and without gradients of its inputs.
struct Check {
  const MeasuredModel& model;
  bool trains;
  DType type;
  std::vector<int64_t> lengths;
  bool keeps_graph, inputs_need_gradient, is_selective = false;

  std::string text() const {
    return std::string(model.name) + (trains ? " trained" : " frozen") + " " + dtype_name(type) +
           " longest " + std::to_string(lengths[0]) + (keeps_graph ? "" : " without graph") +
           (inputs_need_gradient ? "" : " inputs without gradient") +
           (is_selective ? " selective" : "");
  }

  void run(TensorBytes& bytes) const {
    ModelSpec spec = make_model_spec(
        model.config,
        {.encoders = {{"vision", {trains, trains}}, {"audio", {trains, trains}}}, .llm = trains});
    if (model.remake) model.remake(spec);
    const LoadedMicrobatch loaded = make_samples(spec, lengths, 3);
    const Microbatch microbatch =
        make_microbatch(loaded, spec,
                        {.dtype = to_torch(type),
                         .encoder_dtypes = {to_torch(type), to_torch(type)},
                         .trained_step = 0});
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
    UnitCall call{.keeps_graph = keeps_graph,
                  .inputs_need_gradient = {},
                  .inputs_present = {},
                  .is_selective = is_selective};
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
    const UnitMemory declared = unit_memory(spec, unit, sizes, {.param = type}, call);
    const LoneUnit alone(spec, unit, at::dtype(to_torch(type)), at::kFloat);
    const UnitMemory counted = count(alone, inputs, microbatch, bytes, call);
    const std::string what = unit.module + " " + unit_kind_name(unit.kind) + " of " + text();
    EXPECT_EQ(declared.output_bytes, counted.output_bytes) << what;
    expect_near(declared.forward_peak_bytes, declared.forward_scratch_bytes,
                counted.forward_peak_bytes, what + ": forward peak");
    if (!keeps_graph) return;
    expect_near(declared.saved_bytes, 0, counted.saved_bytes, what + ": saved");
    expect_near(declared.backward_peak_bytes, declared.backward_scratch_bytes,
                counted.backward_peak_bytes, what + ": backward peak");
    if (is_selective) expect_same_bits(alone, inputs, microbatch, what);
    if (counted.input_gradient_bytes.empty()) return;
    EXPECT_EQ(declared.input_gradient_bytes, counted.input_gradient_bytes) << what;
  }

  static void expect_same_bits(const LoneUnit& unit, const UnitInputs& inputs,
                               const Microbatch& microbatch, const std::string& what) {
    if (!unit.output(inputs, microbatch).requires_grad()) return;
    const std::vector<at::Tensor> kept = gradients_of(unit, inputs, microbatch, false),
                                  remade = gradients_of(unit, inputs, microbatch, true);
    ASSERT_EQ(kept.size(), remade.size()) << what;
    for (size_t i = 0; i < kept.size(); ++i) EXPECT_TRUE(kept[i].equal(remade[i])) << what << i;
  }
};

TEST_F(UnitMemoryTest, EveryKindTakesWhatItDeclares) {
  TensorBytes bytes;
  for (const MeasuredModel& model : testing::measured_models())
    for (const bool trained : {true, false})
      for (const DType type : {DType::Float32, DType::BFloat16})
        for (const std::vector<int64_t>& lengths :
             {std::vector<int64_t>{163, 101, 158, 59}, {559, 301, 533}})
          for (const bool gradients : {true, false})
            Check{model, trained, type, lengths, true, gradients}.run(bytes);
}

/// Outputs of norms and activations that only linears read are freed and recomputed.
TEST_F(UnitMemoryTest, AndWithSelectiveRecomputation) {
  TensorBytes bytes;
  for (const MeasuredModel& model : testing::measured_models())
    for (const bool trained : {true, false})
      for (const DType type : {DType::Float32, DType::BFloat16})
        Check{model, trained, type, {163, 101, 158, 59}, true, true, true}.run(bytes);
}

TEST_F(UnitMemoryTest, AndWithoutAGraph) {
  const std::set<std::string> chosen{"llava with taps, biases and full attention",
                                     "llava with audio", "gpt2"};
  TensorBytes bytes;
  for (const MeasuredModel& model : testing::measured_models())
    for (const DType type : {DType::Float32, DType::BFloat16})
      for (const std::vector<int64_t>& lengths :
           {std::vector<int64_t>{163, 101, 158, 59}, {559, 301, 533}})
        if (chosen.contains(model.name)) Check{model, true, type, lengths, false, true}.run(bytes);
}

}  // namespace
}  // namespace zea::test_unit_memory
