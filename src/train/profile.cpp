// SPDX-License-Identifier: Apache-2.0
#include "train/profile.hpp"

#include <algorithm>
#include <chrono>
#include <map>
#include <memory>
#include <tuple>

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>

#include <nlohmann/json.hpp>

#include "batch/make_microbatch.hpp"
#include "core/error.hpp"
#include "core/text.hpp"
#include "data/loader.hpp"
#include "deck/deck.hpp"
#include "estimate/step_samples.hpp"
#include "estimate/unit_time.hpp"
#include "model/parameter.hpp"
#include "model/unit.hpp"
#include "parallel/device.hpp"
#include "parallel/engine.hpp"
#include "parallel/sharded_buffer.hpp"
#include "schedule/plan.hpp"
#include "spec/adapters.hpp"
#include "train/training_data.hpp"

namespace zea {
namespace {

/// Returns the item shape to measure in samples of `length` tokens: the encoder's usual shape, or a
/// shorter clip that leaves room for an item of each other encoder.
ItemShape measured_shape(const ModelSpec& model, const EncoderSpec& encoder, int64_t length) {
  const ItemShape usual = encoder.item_shape();
  if (encoder.modality() != Modality::Audio || !encoder.varies()) return usual;
  const int64_t room = (length - 2) / std::ssize(model.encoders);
  return usual.features <= room ? usual : encoder.shape_within(room);
}

void add_item(Sample& sample, const ModelSpec& model, const EncoderSpec& encoder,
              const ItemShape& shape) {
  const int64_t features = shape.features;
  const auto placeholder = static_cast<int32_t>(encoder.placeholder);
  sample.tokens.insert(sample.tokens.end(), features, placeholder);
  sample.loss_mask.insert(sample.loss_mask.end(), features, 1);
  sample.items.emplace_back();
  sample.items.back().modality = encoder.modality();
  sample.items.back().kind = model.encoder_index(encoder.name);
  if (encoder.modality() == Modality::Audio) sample.items.back().shape = shape;
}

/// Returns a token that is no placeholder.
int32_t text_token(const ModelSpec& model) {
  int32_t token = 0;
  while (model.is_placeholder(token)) ++token;
  return token;
}

/// Makes a sample of `length`: items of all encoders in turn as long as they fit, then text.
Sample make_sample(const ModelSpec& model, int64_t length) {
  Sample sample;
  const int32_t text = text_token(model);
  sample.tokens = {text};
  sample.loss_mask = {0};
  for (bool added = true; added;) {
    added = false;
    for (const EncoderSpec& encoder : model.encoders) {
      const auto tokens = static_cast<int64_t>(sample.tokens.size());
      const ItemShape shape = measured_shape(model, encoder, length);
      if (tokens + shape.features >= length) continue;
      add_item(sample, model, encoder, shape);
      added = true;
    }
  }
  sample.tokens.resize(length, text);
  sample.loss_mask.resize(length, 1);
  return sample;
}

/// Makes full rows of samples as long as rows, or as the model's positions allow, with as many
/// items as fit; every token but the first of a sample is a target. Throws PlanError where rows
/// are too short for an item of each encoder.
LoadedMicrobatch make_full_microbatch(const Plan& plan) {
  const ModelSpec& model = plan.model;
  int64_t length = plan.options.data.row_tokens;
  if (model.decoder.limits_positions()) length = std::min(length, model.decoder.max_positions);
  const int64_t tokens = plan.options.data.row_tokens * plan.options.data.rows_per_microbatch;
  LoadedMicrobatch loaded;
  for (int64_t i = 0; i < std::max<int64_t>(1, tokens / length); ++i) {
    loaded.samples.push_back(make_sample(model, length));
    loaded.items += list_items(loaded.samples.back().items);
  }
  for (const EncoderSpec& encoder : model.encoders)
    if (loaded.items.of(model.encoder_index(encoder.name)) == 0)
      throw PlanError("rows of data.row_tokens = " + std::to_string(length) +
                      " tokens hold no item of " + encoder.name + " beside the others: one has " +
                      std::to_string(encoder.item_shape().features) +
                      " tokens; raise data.row_tokens to measure");
  for (const ItemDecoding& decoding : loading_of(plan).encoders) {
    const int64_t items = loaded.items.of(static_cast<int>(loaded.values.size()));
    const EncoderSpec& encoder = model.encoders[loaded.values.size()];
    const ItemShape usual = measured_shape(model, encoder, length);
    const size_t each =
        decoding.values(decoding.mel || decoding.image.has_tiles ? usual : ItemShape{});
    loaded.values.emplace_back(each * static_cast<size_t>(items), 0.5F);
  }
  return loaded;
}

using Clock = std::chrono::steady_clock;

constexpr int kFewestCalls = 5;
constexpr int kMostCalls = 50;
constexpr double kEnoughSeconds = 0.3;  ///< for the calls of one unit
constexpr double kWeights = 0.02;       ///< standard deviation

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

/// Waits until a device has made `tensor`.
void wait_for(const at::Tensor& tensor) {
  if (tensor.is_cuda() && tensor.numel() > 0) tensor.flatten().slice(0, 0, 1).cpu();
}

/// Plans one rank that trains everything and recomputes nothing, without settings that only
/// apply to the deck's mesh or to frozen modules. Frozen modules are told apart later.
Plan plan_of_one_rank(Options options, const std::string& config_json) {
  options.run.mode = RunMode::Train;
  options.mesh = {};
  for (auto& [module, mesh] : options.meshes) mesh = {};
  for (auto& [encoder, section] : options.encoders) section = {};
  options.llm.train = true;
  options.llm.lora = {};
  options.model.activation_checkpointing = AutoOption::of_count(0);
  options.data.cache_features.clear();
  options.optim = {};
  return make_plan(options, without_adapters(config_json), 1);
}

/// Seconds of one call.
UnitCost cost_of_call(const LoneUnit& unit, const UnitInputs& inputs,
                      const Microbatch& microbatch) {
  UnitCost cost;
  const at::AutoGradMode mode(true);
  Clock::time_point begin = Clock::now();
  const at::Tensor result = unit.output(inputs, microbatch);
  wait_for(result);
  cost.forward = seconds_since(begin);
  const at::Tensor gradient = at::ones_like(result);
  DeferredGradients deferred;
  begin = Clock::now();
  {
    const DeferringGradients deferring(unit.parameters(), deferred);
    torch::autograd::backward({result}, {gradient});
  }
  for (const auto& input : inputs)
    if (input && input->grad().defined()) wait_for(input->grad());
  cost.backward_input = seconds_since(begin);
  begin = Clock::now();
  deferred.run();
  for (Parameter* parameter : unit.parameters())
    if (parameter->trainable()) wait_for(parameter->gradient());
  cost.backward_weight = seconds_since(begin);
  return cost;
}

/// The least of several calls: what disturbs a call makes it longer, never shorter.
UnitCost least_cost(const LoneUnit& unit, const std::vector<at::Tensor>& values,
                    const Microbatch& microbatch) {
  UnitCost least;
  double spent = 0;
  for (int call = -1; call < kMostCalls; ++call) {
    UnitInputs inputs;
    for (const at::Tensor& value : values) inputs.emplace_back(value.clone().requires_grad_());
    const Clock::time_point begin = Clock::now();
    const UnitCost cost = cost_of_call(unit, inputs, microbatch);
    if (call < 0) continue;  // the first one finds cold memory
    if (call == 0) least = cost;
    least.forward = std::min(least.forward, cost.forward);
    least.backward_input = std::min(least.backward_input, cost.backward_input);
    least.backward_weight = std::min(least.backward_weight, cost.backward_weight);
    spent += seconds_since(begin);
    if (call + 1 >= kFewestCalls && spent > kEnoughSeconds) break;
  }
  return least;
}

class Profiler {
 public:
  Profiler(const Plan& plan, at::Device device)
      : plan_(plan),
        device_(device),
        microbatch_(make_microbatch(make_full_microbatch(plan), plan.model,
                                    {.dtype = to_torch(plan.precision.param),
                                     .encoder_dtypes = encoder_dtypes(plan),
                                     .device = device,
                                     .trained_step = 0})) {}

  std::vector<UnitCost> measure() {
    std::vector<UnitCost> costs;
    for (const UnitSpec& unit : plan_.model.units) {
      const Measured& measured = measured_like(unit);
      shapes_.push_back(measured.output);
      costs.push_back(measured.cost);
    }
    return costs;
  }

 private:
  using Shapes = std::vector<Shape>;
  struct Measured {
    UnitCost cost;
    Shape output;
  };

  const Measured& measured_like(const UnitSpec& unit) {
    Shapes parameters, inputs;
    for (int param : unit.params) parameters.push_back(plan_.model.params[param].shape);
    for (const UnitInput& input : unit.inputs) inputs.push_back(shapes_[input.unit]);
    const auto [found, is_new] = known_.try_emplace({unit.kind, parameters, inputs});
    if (is_new) found->second = measure(unit, inputs);
    return found->second;
  }

  Measured measure(const UnitSpec& unit, const Shapes& shapes) const {
    const at::ScalarType type = to_torch(plan_.precision_of(unit.module).param);
    std::vector<at::Tensor> values;
    UnitInputs inputs;
    for (const Shape& shape : shapes) {
      values.push_back(
          at::randn(shape, at::TensorOptions().device(device_).dtype(at::kFloat)).to(type));
      inputs.emplace_back(values.back());
    }
    const LoneUnit alone(plan_.model, unit, at::TensorOptions(device_).dtype(type),
                         to_torch(plan_.precision.master));
    const at::NoGradGuard no_gradient;
    const Shape output = alone.output(inputs, microbatch_).sizes().vec();
    return {least_cost(alone, values, microbatch_), output};
  }

  const Plan& plan_;
  at::Device device_;
  Microbatch microbatch_;
  std::vector<Shape> shapes_;  ///< of the outputs of the units so far
  std::map<std::tuple<UnitKind, Shapes, Shapes>, Measured> known_;
};

std::string table_of(const ModelSpec& model, const std::vector<UnitCost>& costs) {
  std::string text = "milliseconds of each unit: forward, gradients of inputs, of weights\n";
  for (size_t u = 0; u < costs.size(); ++u) {
    text += formatted("  %-20s %10.3f %10.3f %10.3f\n", model.units[u].name.c_str(),
                      1e3 * costs[u].forward, 1e3 * costs[u].backward_input,
                      1e3 * costs[u].backward_weight);
  }
  return text;
}

/// A model of one block, and the tokens of a sample.
struct LoneBlock {
  int64_t hidden, intermediate, heads, kv_heads, tokens;

  std::string config() const {
    return nlohmann::json{{"model_type", "llama"},
                          {"hidden_size", hidden},
                          {"intermediate_size", intermediate},
                          {"num_attention_heads", heads},
                          {"num_key_value_heads", kv_heads},
                          {"num_hidden_layers", 1},
                          {"vocab_size", 8}}
        .dump();
  }
  Options options(DType type) const {
    Options options =
        parse_deck("[model]\nweights = \"none\"\n[data]\ntrain = \"none\"\nrow_tokens = " +
                       std::to_string(tokens) + "\n[schedule]\nglobal_batch = 1\n",
                   "the deck of a block", {});
    options.precision.preset = type == DType::Float64    ? PrecisionPreset::Fp64
                               : type == DType::BFloat16 ? PrecisionPreset::Bf16
                                                         : PrecisionPreset::Fp32;
    return options;
  }
};

/// So small that nothing but launches counts.
constexpr LoneBlock kTinyBlock{16, 16, 2, 2, 8};

LoneBlock usual_block(at::Device device) {
  if (device.is_cpu()) return {512, 1376, 8, 4, 512};
  return {4096, 14336, 32, 8, 8192};
}

/// A device whose operations take a second each.
DeviceRates one_second_each() {
  constexpr double kEndless = 1e6;
  DeviceRates rates;
  rates.bf16_tflops = rates.fp32_tflops = rates.fp64_tflops = kEndless;
  rates.gemm_dims = rates.gemm_efficiency = {1};
  rates.attention_efficiency = 1;
  rates.memory_gb_per_s = kEndless;
  rates.launch_us = 1e6;
  return rates;
}

/// The seconds of a block, forward and backward, over those that `rates` make.
double measured_over_planned(const LoneBlock& block, at::Device device, DType type,
                             const DeviceRates& rates) {
  const Plan plan = plan_of_one_rank(block.options(type), block.config());
  const StepSamples samples = synthetic_samples(plan);
  const MicrobatchRows rows =
      rows_of_step(plan, samples, plan_steps(plan, samples).front(), 0).front();
  UnitTimes times(plan, rates);
  const std::vector<UnitCost> costs = Profiler(plan, device).measure();
  double measured = 0, planned = 0;
  for (size_t u = 0; u < costs.size(); ++u) {
    if (plan.model.units[u].kind != UnitKind::Block) continue;
    const UnitSeconds& unit = times.of(static_cast<int>(u), rows.of(kDecoder));
    measured += costs[u].forward + costs[u].backward_input + costs[u].backward_weight;
    planned += unit.forward + unit.backward();
  }
  return measured / planned;
}

}  // namespace

double launch_seconds(at::Device device, DType type) {
  return measured_over_planned(kTinyBlock, device, type, one_second_each());
}

double block_seconds_over_planned(at::Device device, DType type, const DeviceRates& rates) {
  return measured_over_planned(usual_block(device), device, type, rates);
}

Profile profile_units(const Options& options, const std::string& config_json) {
  const Plan plan = plan_of_one_rank(options, config_json);
  at::set_num_threads(static_cast<int>(options.run.threads));
  const at::Device device = open_device(options.run);
  const std::vector<UnitCost> costs = Profiler(plan, device).measure();
  const ProfileConditions conditions{options.data.row_tokens, options.data.rows_per_microbatch,
                                     options.precision.preset.name(), options.run.device.name()};
  return {profile_json(plan.model, costs, conditions), table_of(plan.model, costs)};
}

}  // namespace zea
