// SPDX-License-Identifier: Apache-2.0
#include "estimate/plan_notes.hpp"

#include <algorithm>
#include <set>

#include "deck/deck.hpp"
#include "layout/module_sharding.hpp"

namespace zea {
namespace {

const Sharding& sharding_of(const Plan& plan, const std::string& module) {
  const auto of_module = std::ranges::find(plan.buffers, module, &FlatBuffer::module);
  return plan.shardings[static_cast<size_t>(of_module - plan.buffers.begin())];
}

/// A buffer of its own for several units: it is gathered for each of them, whatever wraps them.
bool is_shared(const FlatBuffer& buffer) {
  return buffer.fsdp_unit < 0 && !buffer.units.empty();
}

bool has_shared(const Plan& plan, const std::string& module) {
  return std::ranges::any_of(plan.buffers, [&](const FlatBuffer& buffer) {
    return buffer.module == module && is_shared(buffer);
  });
}

/// Returns whether the language model, whose forward comes last, is one buffer: then its backward
/// follows its forward with nothing else between them.
bool turns_at_once(const Plan& plan, const std::string& module) {
  if (module != kDecoder || !plan.pipeline.is_one_group() || has_shared(plan, module)) return false;
  std::set<int> fsdp_units;
  for (size_t u = 0; u < plan.model.units.size(); ++u)
    if (plan.model.units[u].module == module && !plan.model.units[u].params.empty())
      fsdp_units.insert(plan.fsdp_units[u]);
  return fsdp_units.size() == 1;
}

/// Why nothing of a module is gathered for its backward; empty where something is.
std::string why_not_in_backward(const Plan& plan, const std::string& module) {
  const Sharding& sharding = sharding_of(plan, module);
  if (sharding.keeps_for_step)
    return "where modules or stages have ranks of their own: units stay gathered for all "
           "microbatches of a step";
  if (sharding.keeps_until_backward && !has_shared(plan, module))
    return "where parameters stay gathered from forward to backward (strategy = \"" +
           plan.options.meshes[module].strategy + "\", reshard_after_forward)";
  if (turns_at_once(plan, module))
    return "where the module is gathered as one (wrap_units = " +
           std::to_string(plan.options.meshes[module].wrap_units) +
           ") and walked last: it stays gathered from forward to backward";
  return "";
}

/// Tells whether one all-gather brings all that is needed at each stage group of the module.
bool is_gathered_at_once(const Plan& plan, const std::string& module) {
  std::vector<std::set<int>> fsdp_units(plan.pipeline.stage_groups.size());
  std::set<int> groups;
  for (size_t u = 0; u < plan.model.units.size(); ++u) {
    const int group = plan.pipeline.group_of_unit(static_cast<int>(u));
    if (plan.model.units[u].module == module) groups.insert(group);
    if (!plan.model.units[u].params.empty()) fsdp_units[group].insert(plan.fsdp_units[u]);
  }
  return !has_shared(plan, module) &&
         std::ranges::all_of(groups, [&](int group) { return fsdp_units[group].size() == 1; });
}

void note_prefetch(const Plan& plan, const std::string& module, std::vector<std::string>& notes) {
  if (!sharding_of(plan, module).gathered()) return;
  const ModuleMeshOptions& mesh = plan.options.meshes[module];
  const ModuleMeshOptions defaults;
  const std::string depth = "prefetch_depth = " + std::to_string(mesh.prefetch_depth),
                    no_backward = why_not_in_backward(plan, module);
  const auto add = [&](const std::string& setting, const std::string& why) {
    notes.push_back("mesh." + module + "." + setting + " has no effect " + why);
  };
  const bool at_once = is_gathered_at_once(plan, module);
  const std::string none_ahead = "where all that a rank needs is gathered as one (wrap_units = " +
                                 std::to_string(mesh.wrap_units) +
                                 "): there is nothing to gather ahead";
  if (mesh.backward_prefetch != defaults.backward_prefetch && (at_once || !no_backward.empty()))
    add("backward_prefetch = \"" + mesh.backward_prefetch + "\"",
        no_backward.empty() ? none_ahead : no_backward);
  if (mesh.forward_prefetch != defaults.forward_prefetch && at_once)
    add("forward_prefetch = \"" + mesh.forward_prefetch + "\"", none_ahead);
  if (mesh.prefetch_depth == defaults.prefetch_depth) return;
  if (at_once)
    add(depth, none_ahead);
  else if (mesh.forward_prefetch == Prefetch::None && !no_backward.empty())
    add(depth + " with forward_prefetch = \"none\"", no_backward);
}

void note_one_copy(const Plan& plan, std::vector<std::string>& notes) {
  const bool has_copies = std::ranges::any_of(
      plan.shardings, [](const Sharding& sharding) { return sharding.replicas > 1; });
  if (plan.options.model.sync_module_states && !has_copies)
    notes.push_back(
        "model.sync_module_states = true has no effect where ranks hold one copy of each module "
        "between them: there is no other to broadcast to, and every rank reads its own part");
}

/// Keys that only a training run reads.
const std::vector<std::string> kOfTraining = {
    "run.peak_tflops",
    "run.cuda_graphs",
    "model.activation_checkpointing",
    "model.*.train",
    "model.*.train_projector",
    "model.*.dropout",
    "mesh.*.backward_prefetch",
    "mesh.*.bucket_mib",
    "mesh.*.sync_grad_accum",
    "precision.*.reduce_dtype",
    "run.replay_every",
    "data.train",
    "data.shuffle",
    "optim.*",
    "schedule.steps",
    "checkpoint.*",
    "eval.every",
    "log.every",
    "log.tensorboard",
    "log.trace_step",
};

bool is_of_training(const std::string& path) {
  return std::ranges::any_of(kOfTraining,
                             [&](const std::string& pattern) { return matches(pattern, path); });
}

bool is_of_evaluation(const std::string& path) {
  return path == "data.eval" || path.starts_with("eval.");
}

/// All in one note.
void note_keys(const std::vector<ChangedKey>& changed, bool (*is_idle)(const std::string& path),
               const std::string& why, std::vector<std::string>& notes) {
  std::string keys;
  int count = 0;
  for (const ChangedKey& key : changed)
    if (is_idle(key.path)) keys += (count++ > 0 ? ", " : "") + key.path;
  if (count > 0) notes.push_back(keys + (count > 1 ? " have" : " has") + " no effect with " + why);
}

/// Decks of a training serve evaluations, too, and the other way round.
void note_mode(const Plan& plan, const std::vector<ChangedKey>& changed,
               std::vector<std::string>& notes) {
  const auto& mode = plan.options.run.mode;
  if (mode != RunMode::Train)
    note_keys(changed, is_of_training, "run.mode = \"" + mode + "\": nothing is trained", notes);
  if (!plan.evaluates())
    note_keys(changed, is_of_evaluation, "eval.every = 0: nothing is evaluated while training",
              notes);
}

std::string not_trained(const Plan& plan, const std::string& module) {
  const bool trains = std::ranges::any_of(plan.buffers, [&](const FlatBuffer& buffer) {
    return buffer.module == module && buffer.trainable;
  });
  return trains ? "" : "where nothing of the module is trained: it has no gradients";
}

/// With no_shard, keys about gathering are refused elsewhere.
std::string not_gathered(const Plan& plan, const std::string& module) {
  if (sharding_of(plan, module).gathered() ||
      plan.options.meshes[module].strategy == ShardingStrategy::NoShard)
    return "";
  return "where no other rank has a shard of the module: nothing of it is gathered";
}

std::string not_shared(const Plan& plan, const std::string& module) {
  const Sharding& sharding = sharding_of(plan, module);
  if (sharding.gathered() || sharding.replicas > 1) return "";
  return "where no other rank has a shard or a copy of the module: nothing of it is gathered or "
         "reduced";
}

std::string not_hybrid(const Plan& plan, const std::string& module) {
  const bool is_hybrid = plan.options.meshes[module].strategy.name().starts_with("hybrid_shard");
  if (!is_hybrid || sharding_of(plan, module).gathered()) return "";
  return "where the ranks of a copy are one (mesh.dp_shard = 1): every rank has all of it, as with "
         "no_shard";
}

/// A key of a module, and why it has no effect; empty: it has one.
struct ModuleKey {
  const char* pattern;
  std::vector<std::string (*)(const Plan&, const std::string&)> reasons;
};

const std::vector<ModuleKey> kOfModules = {
    {"mesh.*.strategy", {not_hybrid}},
    {"mesh.*.reshard_after_forward", {not_gathered}},
    {"mesh.*.forward_prefetch", {not_gathered}},
    {"mesh.*.backward_prefetch", {not_gathered}},
    {"mesh.*.prefetch_depth", {not_gathered}},
    {"mesh.*.wrap_units", {not_shared}},
    {"mesh.*.flatten_parameters", {not_shared}},
    {"mesh.*.bucket_mib", {not_trained, not_shared}},
    {"mesh.*.sync_grad_accum", {not_trained, not_gathered}},
    {"precision.*.reduce_dtype", {not_trained, not_shared}},
};

void note_modules(const Plan& plan, const std::vector<ChangedKey>& changed,
                  std::vector<std::string>& notes) {
  const bool trains = plan.options.run.mode == RunMode::Train;
  for (const ChangedKey& key : changed) {
    if (!plan.model.has(key.module) || (!trains && is_of_training(key.path))) continue;
    for (const auto& [pattern, reasons] : kOfModules) {
      if (!matches(pattern, key.path)) continue;
      for (const auto& reason : reasons)
        if (const std::string why = reason(plan, key.module); !why.empty()) {
          notes.push_back(key.text + " has no effect " + why);
          break;
        }
    }
  }
}

/// Rules of what is not trained, and those that begin behind the run's end.
void note_rules(const Plan& plan, const std::string& key, const std::vector<std::string>& rules,
                std::vector<std::string>& notes) {
  if (plan.options.run.mode != RunMode::Train) return;
  const int64_t steps = plan.options.schedule.steps;
  for (const std::string& text : rules) {
    const ParamPattern rule = *parse_param_rule(text);
    const std::string no_effect = key + ": \"" + text + "\" has no effect: ";
    const auto is_trained = [&](size_t p) { return plan.model.params[p].trainable; };
    if (std::ranges::none_of(matched_params(plan.model, rule.pattern), is_trained))
      notes.push_back(no_effect + "it matches only parameters that are not trained");
    else if (rule.after >= steps)
      notes.push_back(no_effect + "schedule.steps = " + std::to_string(steps) +
                      " makes no more updates than that");
  }
}

/// Tells whether the same parameters train, in the same updates of the run, by other rules.
bool trains_alike(const Plan& plan, const ModelSpec& model, const std::vector<ParamRule>& rules) {
  const int64_t steps = plan.options.schedule.steps;
  for (size_t p = 0; p < rules.size(); ++p) {
    const ParamRule &now = plan.param_rules[p], &then = rules[p];
    const bool trains = plan.model.params[p].trainable;
    if (trains != model.params[p].trainable) return false;
    if (trains && (now.frozen_updates != then.frozen_updates ||
                   std::min(now.frozen_after, steps) != std::min(then.frozen_after, steps)))
      return false;
  }
  return true;
}

/// Rules of optim.frozen that could as well be left out.
void note_frozen(const Plan& plan, std::vector<std::string>& notes) {
  if (plan.options.run.mode != RunMode::Train) return;
  for (size_t r = 0; r < plan.options.optim.frozen.size(); ++r) {
    Options others = plan.options;
    others.optim.frozen.erase(others.optim.frozen.begin() + static_cast<std::ptrdiff_t>(r));
    const ModelSpec model = model_of(others, plan.config_json);
    std::vector<std::string> faults;  // the plan was made without any
    if (trains_alike(plan, model, make_param_rules(model, others.optim, faults)))
      notes.push_back("optim.frozen: \"" + plan.options.optim.frozen[r] +
                      "\" has no effect: without it the same parameters train, in the same updates "
                      "of schedule.steps = " +
                      std::to_string(plan.options.schedule.steps));
  }
}

/// Notes keys about images and audio in a model that takes none.
void note_items(const Plan& plan, std::vector<std::string>& notes) {
  const DataOptions &data = plan.options.data, defaults;
  const ModelSpec& model = plan.model;
  const auto add = [&](bool is_set, const std::string& key, const std::string& lacks) {
    if (is_set)
      notes.push_back("data." + key + " has no effect: the model (" + model.family +
                      ") has no encoder" + lacks);
  };
  const bool has_images = std::ranges::any_of(model.encoders, [](const EncoderSpec& encoder) {
    return encoder.modality() == Modality::Image;
  });
  if (!has_images) {
    add(!data.image_mean.empty(), "image_mean", " of images");
    add(!data.image_std.empty(), "image_std", " of images");
    add(data.image_backend != defaults.image_backend, "image_backend", " of images");
    add(data.max_image_pixels != defaults.max_image_pixels, "max_image_pixels", " of images");
  }
  if (!model.encoders.empty()) return;
  add(data.max_clip_seconds != defaults.max_clip_seconds, "max_clip_seconds", "");
  add(data.bad_items != defaults.bad_items, "bad_items = \"" + data.bad_items + "\"", "");
}

/// Names of what a run has trained in its first updates.
std::set<std::string> trained_by(const Options& options, const std::string& config_json,
                                 int64_t updates) {
  const ModelSpec model = model_of(options, config_json);
  std::vector<std::string> faults;  // the run was planned without any
  const std::vector<ParamRule> rules = make_param_rules(model, options.optim, faults);
  std::set<std::string> names;
  for (size_t p = 0; p < rules.size(); ++p)
    if (model.params[p].trainable && rules[p].frozen_updates < updates)
      names.insert(model.params[p].name);
  return names;
}

}  // namespace

std::vector<std::string> unused_settings(const Plan& plan) {
  std::vector<std::string> notes;
  for (const std::string& module : plan.model.modules()) note_prefetch(plan, module, notes);
  note_one_copy(plan, notes);
  note_items(plan, notes);
  const std::vector<ChangedKey> changed = changed_keys(plan.options);
  note_mode(plan, changed, notes);
  note_modules(plan, changed, notes);
  note_rules(plan, "optim.lr_factors", plan.options.optim.lr_factors, notes);
  note_rules(plan, "optim.weight_decays", plan.options.optim.weight_decays, notes);
  note_frozen(plan, notes);
  return notes;
}

std::string late_starts(const Plan& plan, const Options& before, int64_t updates) {
  if (updates == 0 || plan.options.optim.kind == OptimizerKind::Sgd) return "";
  const std::set<std::string> trained = trained_by(before, plan.config_json, updates);
  std::string first;
  int64_t others = -1;
  for (size_t p = 0; p < plan.model.params.size(); ++p) {
    const ParamSpec& param = plan.model.params[p];
    const ParamRule& rule = plan.param_rules[p];
    const bool trains = param.trainable && rule.frozen_updates < updates &&
                        rule.frozen_after > updates && !rule.orthogonalizes;  // which corrects none
    const bool is_late = trains && !trained.contains(param.name);
    if (is_late && ++others == 0) first = param.name;
  }
  if (others < 0) return "";
  const std::string count = std::to_string(updates);
  return first + (others > 0 ? " and " + std::to_string(others) + " more" : "") +
         " did not train in the " + count +
         " updates before this start, which are counted as theirs: the correction of their first "
         "moments is that of old ones, and their first steps may be several times optim.lr; "
         "optim.frozen = [\"pattern = " +
         count + "\"] counts from there";
}

}  // namespace zea
