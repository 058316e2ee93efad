// SPDX-License-Identifier: Apache-2.0
#include "deck/key_table.hpp"

#include <algorithm>
#include <cmath>

#include "core/text.hpp"

namespace zea {
namespace {

using Faults = std::vector<OptionFault>;

/// Either one model, or a language model and encoders.
void check_composition(const Options& options, Faults& faults) {
  const std::string decoder = "model." + kDecoder + ".weights";
  const bool is_composed = !options.llm.weights.empty();
  for (const auto& [encoder, section] : options.encoders) {
    const std::string path = "model." + encoder;
    const EncoderOptions usual;
    const bool shapes =
        section.placeholder != usual.placeholder || section.projector != usual.projector ||
        section.feature_layer != usual.feature_layer || section.feature_norm != usual.feature_norm;
    if (section.weights.empty() && shapes)
      faults.push_back({{path + ".weights"},
                        path + " says what an encoder with weights of its own becomes, but " +
                            path + ".weights is not set"});
    if (!section.weights.empty() && !is_composed)
      faults.push_back({{path + ".weights", decoder},
                        path + ".weights = " + toml_text(section.weights) +
                            " needs a language model in " + decoder + " to be combined with"});
  }
  if (is_composed && (!options.model.weights.empty() || !options.model.config.empty()))
    faults.push_back({{decoder, "model.weights", "model.config"},
                      decoder + " = " + toml_text(options.llm.weights) +
                          " stands in place of model.weights and model.config; leave these out"});
}

void check_dropout(const std::string& key, const std::optional<double>& rate, Faults& faults) {
  if (rate == 1.)
    faults.push_back({{key}, key + " = 1.0; it must be below 1, or everything is dropped"});
}

void check_lora(const std::string& module, const LoraOptions& lora, bool trains, Faults& faults) {
  const std::string section = "model." + module, path = section + ".lora";
  if (lora == LoraOptions{}) return;
  LoraOptions alone;
  alone.weights = lora.weights;
  alone.dropout = lora.dropout;
  if (lora.targets.empty() && lora.weights.empty())
    faults.push_back({{path + ".targets"},
                      path + " has no targets; name linears, such as \"q_proj\", or weights"});
  if (!lora.weights.empty() && lora != alone)
    faults.push_back({{path + ".weights"},
                      path + ".weights = " + toml_text(lora.weights) +
                          " says targets, rank, alpha and rslora itself; leave these out"});
  check_dropout(path + ".dropout", lora.dropout, faults);
  if (!trains)
    faults.push_back({{section + ".train", path + ".targets"},
                      section + ".train = false freezes all of " + module + ", but " + path +
                          " gives it adapters to train; leave one of them out (beside adapters "
                          "the module itself is frozen)"});
}

void check_adapters(const Options& options, Faults& faults) {
  for (const auto& [encoder, section] : options.encoders)
    check_lora(encoder, section.lora, section.train, faults);
  check_lora(kDecoder, options.llm.lora, options.llm.train, faults);
  check_dropout("model." + kDecoder + ".dropout", options.llm.dropout, faults);
}

void check_files(const Options& options, Faults& faults) {
  if (options.model.weights.empty() && options.model.config.empty() && options.llm.weights.empty())
    faults.push_back({{"model.weights"}, "model.weights is not set; name the weights file (.h5)"});
  if (options.run.mode == RunMode::Train && options.data.train.empty())
    faults.push_back({{"data.train", "run.mode"},
                      "data.train is not set; run.mode = \"train\" needs a data set (.h5)"});
  if (!options.data.eval.empty()) return;
  auto needs_eval = [&](const std::string& key, const std::string& value) {
    faults.push_back(
        {{key, "data.eval"}, key + " = " + value + " needs a data set in data.eval (.h5)"});
  };
  if (options.run.mode == RunMode::Evaluate) needs_eval("run.mode", "\"evaluate\"");
  if (options.run.mode == RunMode::Generate) needs_eval("run.mode", "\"generate\"");
  if (options.eval.every > 0) needs_eval("eval.every", toml_text(options.eval.every));
  if (options.eval.samples > 0) needs_eval("eval.samples", toml_text(options.eval.samples));
  if (options.eval.generate_tokens > 0)
    needs_eval("eval.generate_tokens", toml_text(options.eval.generate_tokens));
}

/// Modules are those that the deck has sections of.
void check_load_modules(const Options& options, Faults& faults) {
  std::vector<std::string> encoders;
  for (const auto& [encoder, section] : options.encoders) encoders.push_back(encoder);
  const std::vector<std::string> parts = parts_beside(encoders);
  for (const std::string& module : options.model.load_modules)
    if (std::count(parts.begin(), parts.end(), module) == 0)
      faults.push_back(
          {{"model.load_modules"},
           "model.load_modules holds \"" + module + "\"; allowed: " +
               join(parts, ", ", [](const std::string& part) { return toml_text(part); })});
}

void check_mesh(const MeshOptions& mesh, Faults& faults) {
  if (mesh.dp_replicate == 0)
    faults.push_back(
        {{"mesh.dp_replicate"}, "mesh.dp_replicate = 0; use 1 or more, or -1 for the rest"});
  if (mesh.dp_shard == 0)
    faults.push_back({{"mesh.dp_shard"}, "mesh.dp_shard = 0; use 1 or more, or -1 for the rest"});
  if (mesh.dp_replicate == -1 && mesh.dp_shard == -1)
    faults.push_back(
        {{"mesh.dp_replicate", "mesh.dp_shard"},
         "mesh.dp_replicate = -1 and mesh.dp_shard = -1; only one of them can be the rest"});
}

/// Keys of layout = "auto" without it, and what it records of its choice.
void check_layout(const MeshOptions& mesh, Faults& faults) {
  const auto refuse_if = [&](bool wrong, const char* key, const std::string& found) {
    if (wrong)
      faults.push_back({{key, "mesh.layout"},
                        key + (" = " + found) +
                            " belongs to mesh.layout = \"auto\", which searches the layout; set "
                            "that, or leave it out"});
  };
  if (mesh.layout == LayoutSource::Auto) return;
  refuse_if(!mesh.hardware.empty(), "mesh.hardware", toml_text(mesh.hardware));
  refuse_if(mesh.searched_ranks > 0, "mesh.searched_ranks", toml_text(mesh.searched_ranks));
  refuse_if(!mesh.searched_keys.empty(), "mesh.searched_keys", toml_text(mesh.searched_keys));
}

/// mesh.order names every axis once, or is left out.
void check_order(const std::vector<std::string>& order, Faults& faults) {
  const std::vector<std::string> axes = {"tp", "cp", "encoder_dp", "pp", "module", "dp"};
  if (order.empty() || std::is_permutation(order.begin(), order.end(), axes.begin(), axes.end()))
    return;
  faults.push_back({{"mesh.order"},
                    "mesh.order = " + toml_text(order) + "; it must name each of " +
                        toml_text(axes) + " once, or be left out"});
}

void check_channels(const std::string& key, const std::vector<double>& values, Faults& faults) {
  if (values.empty() || values.size() == 3) return;
  faults.push_back({{key},
                    key + " has " + std::to_string(values.size()) +
                        " entries; 3 are needed, for red, green and blue"});
}

/// The key that says where the schedule of rates ends.
std::string end_key(const OptimOptions& optim) {
  return optim.decay_until > 0 ? "optim.decay_until" : "schedule.steps";
}

/// Checks decay_steps of decay = "wsd".
void check_wsd(const Options& options, Faults& faults) {
  const OptimOptions& optim = options.optim;
  const std::string found = "optim.decay_steps = " + toml_text(optim.decay_steps);
  const int64_t end = optim.schedule_end(options.schedule.steps);
  const int64_t after_warmup = end - optim.warmup_in(options.schedule.steps);
  if (optim.decay != RateDecay::Wsd) {
    if (optim.decay_steps > 0)
      faults.push_back({{"optim.decay_steps", "optim.decay"},
                        found + " is of optim.decay = \"wsd\", but that is \"" +
                            optim.decay.name() + "\"; leave one of them out"});
  } else if (optim.decay_steps == 0) {
    faults.push_back({{"optim.decay"},
                      "optim.decay = \"wsd\" needs optim.decay_steps, the length of the fall at "
                      "the end; a tenth to a fifth of schedule.steps is usual"});
  } else if (after_warmup >= 0 && optim.decay_steps > after_warmup) {
    faults.push_back({{"optim.decay_steps", "schedule.steps"},
                      found + " is above the " + toml_text(after_warmup) + " steps of " +
                          end_key(optim) + " that follow optim.warmup_steps"});
  }
}

void check_rates(const Options& options, Faults& faults) {
  const OptimOptions& optim = options.optim;
  if (optim.min_lr > optim.lr)
    faults.push_back({{"optim.min_lr", "optim.lr"},
                      "optim.min_lr = " + toml_text(optim.min_lr) +
                          " is above optim.lr = " + toml_text(optim.lr)});
  else if (optim.decay == RateDecay::Constant && optim.min_lr > 0 && optim.min_lr != optim.lr)
    faults.push_back({{"optim.min_lr", "optim.decay"},
                      "optim.min_lr = " + toml_text(optim.min_lr) +
                          " is never reached with optim.decay = \"constant\"; leave it out"});
  if (optim.decay == RateDecay::Constant && optim.decay_until > 0)
    faults.push_back({{"optim.decay_until", "optim.decay"},
                      "optim.decay_until = " + toml_text(optim.decay_until) +
                          " changes nothing with optim.decay = \"constant\"; leave it out"});
  check_wsd(options, faults);
  const int64_t warmup = optim.warmup_in(options.schedule.steps);
  const int64_t end = optim.schedule_end(options.schedule.steps);
  if (optim.warmup_steps > 1 && optim.warmup_steps != std::floor(optim.warmup_steps))
    faults.push_back({{"optim.warmup_steps"},
                      "optim.warmup_steps = " + toml_text(optim.warmup_steps) +
                          "; it must be a whole number of steps, or a share below 1"});
  else if (optim.warmup_steps >= 1 && warmup > end)
    faults.push_back({{"optim.warmup_steps", "schedule.steps"},
                      "optim.warmup_steps = " + toml_text(warmup) + " is above " + end_key(optim) +
                          " = " + toml_text(end) +
                          "; lower it, or give a share of the steps (0.1: a tenth)"});
}

/// A guard's settings without the guard.
void check_guard(const OptimOptions& optim, Faults& faults) {
  const OptimOptions defaults;
  const bool judges = optim.spike_deviations > 0;
  const std::string without = " is set, but no step is skipped without ";
  if (!judges && optim.spike_window != defaults.spike_window)
    faults.push_back({{"optim.spike_window", "optim.spike_deviations"},
                      "optim.spike_window = " + toml_text(optim.spike_window) + without +
                          "optim.spike_deviations; set that, or leave it out"});
  if (!judges && optim.on_nonfinite == NonFiniteStep::Stop && optim.max_skips != defaults.max_skips)
    faults.push_back({{"optim.max_skips", "optim.on_nonfinite", "optim.spike_deviations"},
                      "optim.max_skips = " + toml_text(optim.max_skips) + without +
                          "optim.on_nonfinite = \"skip\" or optim.spike_deviations; set one of "
                          "them, or leave it out"});
}

void check_trace(const Options& options, Faults& faults) {
  if (options.log.trace_step > options.schedule.steps)
    faults.push_back({{"log.trace_step", "schedule.steps"},
                      "log.trace_step = " + toml_text(options.log.trace_step) +
                          " is above schedule.steps = " + toml_text(options.schedule.steps) +
                          "; no step would be traced"});
}

void check_generation(const Options& options, Faults& faults) {
  const EvalOptions& eval = options.eval;
  const auto needs_tokens = [&](const std::string& key, const std::string& value) {
    faults.push_back(
        {{key, "eval.generate_tokens"},
         key + " = " + value + " needs tokens to be generated; set eval.generate_tokens above 0"});
  };
  if (eval.generate_tokens == 0) {
    if (options.run.mode == RunMode::Generate) needs_tokens("run.mode", "\"generate\"");
    if (eval.temperature > 0) needs_tokens("eval.temperature", toml_text(eval.temperature));
    if (!eval.stop_tokens.empty()) needs_tokens("eval.stop_tokens", toml_text(eval.stop_tokens));
    if (!eval.stop_texts.empty()) needs_tokens("eval.stop_texts", toml_text(eval.stop_texts));
  }
  if (eval.top_p < 1 && eval.temperature == 0)
    faults.push_back({{"eval.top_p", "eval.temperature"},
                      "eval.top_p = " + toml_text(eval.top_p) +
                          " with eval.temperature = 0.0, which takes the likeliest token whatever "
                          "it has; set eval.temperature above 0, or leave eval.top_p out"});
  if (eval.top_p == 0)
    faults.push_back(
        {{"eval.top_p"}, "eval.top_p = 0.0; it must be above 0, or no token is left to be drawn"});
  if (std::ranges::any_of(eval.stop_tokens,
                          [](double id) { return id < 0 || id != std::floor(id); }))
    faults.push_back({{"eval.stop_tokens"},
                      "eval.stop_tokens = " + toml_text(eval.stop_tokens) +
                          "; token ids are whole numbers from 0 on"});
  if (std::ranges::any_of(eval.stop_texts, &std::string::empty))
    faults.push_back({{"eval.stop_texts"},
                      "eval.stop_texts = " + toml_text(eval.stop_texts) +
                          "; an empty text stands in every text, so none would be generated"});
}

void check_interval(const CheckpointOptions& checkpoint, Faults& faults) {
  const AutoOption& every = checkpoint.every;
  if (!every.is_auto() && !every.is_count())
    faults.push_back({{"checkpoint.every"},
                      "checkpoint.every = " + toml_text(every) +
                          "; write a number of steps, \"auto\", or 0 for none"});
  if (!every.is_auto() && checkpoint.mtbf_hours != CheckpointOptions{}.mtbf_hours)
    faults.push_back({{"checkpoint.mtbf_hours", "checkpoint.every"},
                      "checkpoint.mtbf_hours = " + toml_text(checkpoint.mtbf_hours) +
                          " has no effect on a fixed checkpoint.every; set that to \"auto\", or "
                          "leave it out"});
}

void check_adam(const Options& options, Faults& faults) {
  const OptimOptions& optim = options.optim;
  if (optim.betas.size() != 2)
    faults.push_back({{"optim.betas"},
                      "optim.betas has " + std::to_string(optim.betas.size()) +
                          " entries; 2 are needed, for the first and second moment"});
  for (const double beta : optim.betas)
    if (beta == 1) {
      faults.push_back({{"optim.betas"},
                        "optim.betas = " + toml_text(optim.betas) +
                            "; each must be below 1, or the moment never moves"});
      break;
    }
  const bool is_narrow = options.precision.preset != PrecisionPreset::Fp64;
  if (is_narrow ? static_cast<float>(optim.eps) == 0 : optim.eps == 0)
    faults.push_back({{"optim.eps"},
                      "optim.eps = " + toml_text(optim.eps) + "; it must be above 0" +
                          (is_narrow ? " in fp32" : "") + ", or a zero gradient gives NaN"});
  if (optim.kind == OptimizerKind::Muon && optim.momentum == 1)
    faults.push_back({{"optim.momentum"},
                      "optim.momentum = 1.0 with optim.kind = \"muon\"; it must be below 1, or no "
                      "matrix ever moves"});
}

}  // namespace

std::vector<OptionFault> check_options(const Options& options) {
  Faults faults;
  check_composition(options, faults);
  check_adapters(options, faults);
  check_files(options, faults);
  check_load_modules(options, faults);
  check_mesh(options.mesh, faults);
  check_layout(options.mesh, faults);
  check_order(options.mesh.order, faults);
  check_channels("data.image_mean", options.data.image_mean, faults);
  check_channels("data.image_std", options.data.image_std, faults);
  check_rates(options, faults);
  check_adam(options, faults);
  check_guard(options.optim, faults);
  check_trace(options, faults);
  check_generation(options, faults);
  check_interval(options.checkpoint, faults);
  return faults;
}

}  // namespace zea
