// SPDX-License-Identifier: Apache-2.0
#include "schedule/plan_parts.hpp"

#include <algorithm>

#include "core/kernel_sizes.hpp"
#include "core/text.hpp"

namespace zea::detail {
namespace {

/// Two keys of data: the least and the most of something that some encoders have.
struct LimitKeys {
  std::string least_key, most_key;
  int64_t DataOptions::*least, DataOptions::*most;
  const char* encoders;  ///< of these
  bool (*has)(const PatchInput&);
  PixelLimits (*limits)(const PatchInput&);
  void (*limit)(PatchInput&, const PixelLimits&);
  bool (*has_no_least)(const PatchInput&);
};

const LimitKeys kLimits[] = {
    {"resized_min_pixels", "resized_max_pixels", &DataOptions::resized_min_pixels,
     &DataOptions::resized_max_pixels, "images of any size with such limits",
     [](const PatchInput& input) { return input.pixel_limits().has_value(); },
     [](const PatchInput& input) { return *input.pixel_limits(); },
     [](PatchInput& input, const PixelLimits& to) { input.limit(to); },
     [](const PatchInput& input) { return input.as<ImagesFilling>() || input.as<ImagesPadded>(); }},
    {"min_tiles", "max_tiles", &DataOptions::min_tiles, &DataOptions::max_tiles, "tiles",
     [](const PatchInput& input) { return input.as<NearestTiles>() || input.as<SplitTiles>(); },
     [](const PatchInput& input) {
       return PixelLimits{input.tile_limits().least, input.tile_limits().most};
     },
     [](PatchInput& input, const PixelLimits& to) {
       input.limit_tiles({to.least, to.most});
     },
     [](const PatchInput& input) { return input.as<SplitTiles>() != nullptr; }},
    {"video_min_pixels", "video_max_pixels", &DataOptions::video_min_pixels,
     &DataOptions::video_max_pixels, "videos of any size",
     [](const PatchInput& input) { return input.video && input.any_size(); },
     [](const PatchInput& input) { return input.video->pixels; },
     [](PatchInput& input, const PixelLimits& to) { input.video->pixels = to; },
     [](const PatchInput& input) { return input.as<ImagesFilling>() || input.as<ImagesPadded>(); }},
};

bool is_set(const DataOptions& data, const LimitKeys& keys) {
  return data.*keys.least > 0 || data.*keys.most > 0;
}

bool has(const EncoderSpec& encoder, const LimitKeys& keys) {
  return encoder.modality() == Modality::Image && keys.has(encoder.patches());
}

void check_limits(Faults& faults, const DataOptions& data, const ModelSpec& model,
                  const LimitKeys& keys) {
  if (std::ranges::none_of(model.encoders, [&](const auto& encoder) { return has(encoder, keys); }))
    faults.add("data." + keys.least_key + " or data." + keys.most_key + " is set, but the model (" +
               model.family + ") has no encoder of " + keys.encoders + "; leave them out");
  for (const EncoderSpec& encoder : model.encoders) {
    if (!has(encoder, keys)) continue;
    const auto [least, most] = keys.limits(encoder.patches());
    const PatchInput& patches = encoder.patches();
    const int64_t patch = patches.patch_size * patches.patch_size;
    if (patches.as<ImagesPadded>() && keys.most != &DataOptions::max_tiles && most < patch)
      faults.add("data." + keys.most_key + " = " + std::to_string(most) + " is less than the " +
                 std::to_string(patch) + " pixels of a patch of " + encoder.name + "; raise it");
    if (least > most)
      faults.add("data." + keys.least_key + " = " + std::to_string(least) + " is more than data." +
                 keys.most_key + " = " + std::to_string(most));
    if (data.*keys.least > 0 && keys.has_no_least(encoder.patches()))
      faults.add("data." + keys.least_key + " is set, but images of " + encoder.name +
                 " have no least size: they fill data." + keys.most_key +
                 " or are never enlarged; leave it out");
  }
}

}  // namespace

void set_item_limits(const DataOptions& data, ModelSpec& model) {
  for (EncoderSpec& encoder : model.encoders) {
    for (const LimitKeys& keys : kLimits) {
      if (!has(encoder, keys)) continue;
      auto& input = std::get<PatchInput>(encoder.input);
      const auto [least, most] = keys.limits(input);
      keys.limit(input, {data.*keys.least > 0 ? data.*keys.least : least,
                         data.*keys.most > 0 ? data.*keys.most : most});
    }
    auto* patches = std::get_if<PatchInput>(&encoder.input);
    if (patches && patches->video && data.max_frames > 0) {
      int64_t& most = patches->video->most_frames;
      most = encoder.averages_frames() ? std::min(most, data.max_frames) : data.max_frames;
    }
    if (patches && data.image_backend != ImageBackend::Auto)
      patches->by_torchvision = data.image_backend == ImageBackend::Torchvision;
  }
}

void check_item_limits(Faults& faults, const DataOptions& data, const ModelSpec& model) {
  for (const LimitKeys& keys : kLimits)
    if (is_set(data, keys)) check_limits(faults, data, model, keys);
  const auto takes_videos = [](const EncoderSpec& encoder) {
    const auto* patches = std::get_if<PatchInput>(&encoder.input);
    return patches && patches->video;
  };
  for (const EncoderSpec& encoder : model.encoders) {
    const auto* patches = std::get_if<PatchInput>(&encoder.input);
    if (patches && patches->by_torchvision && patches->resampling == Resampling::Lanczos)
      faults.add(
          "data.image_backend = \"torchvision\", but images of " + encoder.name +
          " are resized by Lanczos' kernel, which zea has as PIL has it; allowed: auto, pil");
  }
  if (data.max_frames > 0 && std::ranges::none_of(model.encoders, takes_videos))
    faults.add("data.max_frames is set, but the model (" + model.family +
               ") has no encoder of videos; leave it out");
}

namespace {

bool asks(const Options& options) {
  return !options.data.cache_features.empty() && options.run.mode == RunMode::Train;
}

/// Parameters of an encoder's blocks and of what stands before them that train.
std::vector<int> trained_params(const ModelSpec& model, int encoder) {
  std::vector<int> trained;
  for (const UnitSpec& unit : model.units)
    if (unit.encoder == encoder && unit.kind != UnitKind::Projector)
      std::ranges::copy_if(unit.params, std::back_inserter(trained),
                           [&](int param) { return model.params[param].trainable; });
  return trained;
}

/// Why the features of an encoder change from step to step.
std::string why_not(const ModelSpec& model, int encoder, const std::vector<ParamRule>& rules) {
  const std::string& name = model.encoders[static_cast<size_t>(encoder)].name;
  const auto is_adapted = [&](const UnitSpec& unit) {
    return unit.encoder == encoder && unit.kind != UnitKind::Projector && !unit.adapters.empty();
  };
  if (std::ranges::any_of(model.units, is_adapted))
    return name + " has adapters ([model." + name + ".lora])";
  const auto waits = [&](int param) {
    return rules[static_cast<size_t>(param)].frozen_updates > 0;
  };
  if (std::ranges::all_of(trained_params(model, encoder), waits))
    return name + " trains later (optim.frozen has a number of updates)";
  return name + " trains (model." + name + ".train = true)";
}

}  // namespace

void mark_cached_encoders(const Options& options, ModelSpec& model) {
  for (size_t e = 0; e < model.encoders.size(); ++e)
    model.encoders[e].is_cached =
        asks(options) && trained_params(model, static_cast<int>(e)).empty();
}

void check_cached_encoders(Faults& faults, const Options& options, const ModelSpec& model,
                           const std::vector<ParamRule>& rules) {
  if (options.data.cache_features.empty()) return;
  const std::string setting = "data.cache_features = \"" + options.data.cache_features + "\"";
  if (!asks(options))
    return faults.note(setting + " has no effect with run.mode = \"" + options.run.mode +
                       "\": it keeps features of data.train");
  if (model.encoders.empty())
    return faults.add(setting + ", but the model (" + model.family +
                      ") has no encoder; leave it out");
  std::string reasons;
  for (size_t e = 0; e < model.encoders.size(); ++e)
    if (!model.encoders[e].is_cached)
      reasons += (reasons.empty() ? "" : ", ") + why_not(model, static_cast<int>(e), rules);
  if (std::ranges::none_of(model.encoders, &EncoderSpec::is_cached))
    faults.add(setting + ", but " + reasons +
               ", so its features are others after every step; freeze it, or leave the key out");
  else if (!reasons.empty())
    faults.note(setting + " keeps features of frozen encoders alone: " + reasons);
}

void check_cached_stages(Faults& faults, const ModelSpec& model, const Pipeline& pipeline) {
  for (size_t e = 0; e < model.encoders.size(); ++e) {
    const std::vector<int> units = model.read_by_projectors(static_cast<int>(e));
    const auto stands_apart = [&](int unit) {
      return pipeline.group_of_unit(unit) != pipeline.group_of_unit(units.front());
    };
    if (model.encoders[e].is_cached && std::ranges::any_of(units, stands_apart))
      faults.add("data.cache_features with mesh." + model.encoders[e].name +
                 ".pp: the features of several depths that " + model.family +
                 " reads lie in several stages, whose ranks cannot write them together; use pp = 1 "
                 "for the encoder, or leave the key out");
  }
}

namespace {

/// With a part of the ranks, several communicators would be in one graph.
bool is_of_some_ranks(const Sharding& sharding, int world_size) {
  const auto is_some = [&](int ranks) { return ranks > 1 && ranks < world_size; };
  return is_some(sharding.shards) || is_some(sharding.replicas) || sharding.subgroup > 0;
}

}  // namespace

void check_routers(Faults& faults, const Options& options, const ModelSpec& model) {
  const LlmOptions& llm = options.llm;
  const double aux = llm.router_aux_loss_coef.value_or(0),
               rate = options.optim.router_bias_update_rate;
  bool is_mixture = false, has_bias = false, has_softmax = false, trains = false,
       has_gradient = false;
  const std::vector<bool> gradients = model.units_with_gradient();
  for (size_t u = 0; u < model.units.size(); ++u) {
    const UnitSpec& unit = model.units[u];
    if (unit.kind != UnitKind::Block || !model.mlp(unit).router) continue;
    is_mixture = true;
    has_bias |= unit.has("correction_bias");
    has_softmax |= model.mlp(unit).router->scores == RouterScores::Softmax;
    has_gradient |= gradients[u];
    trains |= model.trains(model.params_of(unit, "router.weight"));
  }
  const auto check = [&](const std::string& key, double value, bool has_routers,
                         const std::string& what, bool has_effect, const std::string& otherwise) {
    if (value == 0) return;
    const std::string found = key + formatted(" = %g", value);
    if (!has_routers)
      faults.add(found + ", but the model (" + model.family + ") " + what + "; leave it out");
    else if (options.run.mode == RunMode::Train && !has_effect)
      faults.add(found + ", but " + otherwise + "; leave it out");
  };
  const std::string section = "model." + kDecoder + ".";
  check("optim.router_bias_update_rate", rate, has_bias, "does not choose experts with a bias",
        trains, "the routers of the language model are frozen");
  // The losses of frozen routers also train the layers before them.
  const auto check_loss = [&](const std::string& key, double value, bool has_routers,
                              const std::string& what) {
    check(section + key, value, has_routers, what, has_gradient,
          "the routers of the language model and all layers before them are frozen");
  };
  check_loss("router_aux_loss_coef", aux, has_softmax, "has no experts scored by a softmax");
  check_loss("router_z_loss_coef", llm.router_z_loss_coef, is_mixture, "has no routers");
  const double config = llm.router_aux_loss_coef ? 0 : model.decoder.router_aux_loss;
  if (options.run.mode == RunMode::Train && has_gradient && aux + config > 0)
    faults.note(section + formatted("router_aux_loss_coef = %g: ", aux + config) +
                "each step runs its forward twice, first to count the tokens of experts over the "
                "global batch; estimates of seconds and FLOPs leave that out");
  if (aux + config == 0 && llm.router_aux_loss_scope != RouterLossScope::Pooled)
    faults.note(section + "router_aux_loss_scope has no effect without router_aux_loss_coef");
}

void note_waits_for_routers(Faults& faults, const Options& options, const ModelSpec& model,
                            DType param) {
  if (options.run.device != DeviceKind::Cuda || !model.has_experts()) return;
  const std::string cost =
      ": on a GPU the host waits for the router in each mixture and launches expert by expert; ";
  if (param != DType::BFloat16) {
    faults.note("experts in fp32" + cost + "in bf16 the GEMMs of all experts are one launch");
    return;
  }
  for (const UnitSpec& unit : model.units)
    for (const Adapter& adapter : unit.adapters) {
      const Shape& a = model.params[adapter.a].shape;
      const int64_t rank = a[a.size() - 2];
      if (adapter.experts == 0 || rank % kPackOfBf16 == 0) continue;
      faults.note("model." + kDecoder + ".lora gives experts adapters of rank " +
                  std::to_string(rank) + cost +
                  "with multiples of 8 the GEMMs of all experts are one launch");
      return;
    }
}

void check_mtp(Faults& faults, const Options& options, const ModelSpec& model) {
  const double coefficient = options.llm.mtp_loss_coef;
  if (coefficient == 0 || options.run.mode != RunMode::Train) return;
  const std::string found = "model." + kDecoder + formatted(".mtp_loss_coef = %g", coefficient);
  const ModuleMeshOptions mesh = options.meshes[kDecoder];
  if (model.decoder.mtp_loss == 0)
    faults.add(found + ", but the model (" + model.family +
               ") has no head of multi-token prediction that zea trains; it trains those of "
               "Qwen3.5 without experts; leave it out");
  else if (!options.llm.train)
    faults.add(found + ", but the language model is frozen; leave it out");
  else if (!options.llm.lora.targets.empty())
    faults.add(found + " with model." + kDecoder +
               ".lora: adapters of the head are not built yet; leave one of them out");
  else if (mesh.pp > 1 || mesh.cp > 1)
    faults.add(found + " with mesh." + kDecoder +
               formatted(".pp = %ld and cp = %ld", static_cast<long>(mesh.pp),
                         static_cast<long>(mesh.cp)) +
               ": the head is not built for these yet; use pp = 1 and cp = 1");
}

void check_graphs(Faults& faults, const GraphedRun& run) {
  const int64_t shapes = run.options.run.cuda_graphs;
  if (shapes == 0) return;
  const std::string found = "run.cuda_graphs = " + std::to_string(shapes);
  const int ranks = run.mesh.ranks_per_replica(), all = run.mesh.world_size();
  if (ranks > 1)
    faults.add(found + " with " + std::to_string(ranks) +
               " ranks that share microbatches: graphs are built for tp = 1, cp = 1, pp = 1 and "
               "modules that share their ranks; use these, or leave it out");
  else if (std::ranges::any_of(run.shardings,
                               [&](const Sharding& one) { return is_of_some_ranks(one, all); }))
    faults.add(found +
               " with modules that are sharded over some ranks and summed over others: a graph "
               "holds the calls of one communicator; use strategy = \"full_shard\", "
               "\"shard_grad_op\" or \"no_shard\", or leave it out");
  if (std::ranges::any_of(run.shardings, &Sharding::offloads))
    faults.add(found +
               " with cpu_offload = true: the host waits for copies within a step, which no graph "
               "holds; leave one of them out");
  if (run.options.data.bad_items == BadItems::Mask)
    faults.add(found +
               " with data.bad_items = \"mask\": what is masked changes the shape of a step on one "
               "rank alone; use \"stop\", or leave it out");
  if (run.bidirectional_images != BidirectionalLayers::None)
    faults.add(found + " with a language model (" + run.model.family +
               ") in which images see all of themselves: where they stand in a row is not known "
               "from its shape; set model." +
               kDecoder +
               ".image_attention = \"causal\" if that is meant, or "
               "leave it out");
}

void check_replay(Faults& faults, const Options& options, const MeshShape& mesh) {
  const RunOptions& run = options.run;
  const bool replays = run.replay_every > 0 && run.mode == RunMode::Train;
  if (!replays || mesh.modules.empty()) return;
  const std::string found = "run.replay_every = " + std::to_string(run.replay_every);
  if (run.device != DeviceKind::Cpu && !run.deterministic)
    faults.add(found +
               " with run.device = \"cuda\": GPU kernels may give different bits each time, which "
               "a replay would report; set run.deterministic=true, or leave run.replay_every out");
  if (run.cuda_graphs > 0)
    faults.add(found + " with run.cuda_graphs = " + std::to_string(run.cuda_graphs) +
               ": values inside a CUDA graph cannot be hashed; leave one of the keys out");
  if (replay_distance({.replicas = mesh.replicas(),
                       .shard_group = mesh.dp_shard,
                       .expert_group = mesh.grid(kDecoder).ep_dp_shard}) == 0)
    faults.note(found + ": no other ranks can replay a step (" + std::to_string(mesh.replicas()) +
                (mesh.replicas() == 1 ? " replica" : " replicas, which share experts") +
                "), so each rank repeats its own work, which finds transient errors but not a "
                "processor that computes the same wrong bits each time");
}

}  // namespace zea::detail
