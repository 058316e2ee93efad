// SPDX-License-Identifier: Apache-2.0
#include "spec/parameter_names.hpp"

#include <algorithm>
#include <array>
#include <optional>

namespace zea {
namespace {

constexpr const char* kKimi = "kimi_k25";

struct Prefix {
  const char* from;
  const char* to;
};

/// The first prefix that fits is replaced; longer ones stand before those that they contain.
constexpr std::array<Prefix, 9> kPrefixes{{{"vision_tower.vision_model.", "vision_tower."},
                                           {"language_model.model.model.", "language_model.model."},
                                           {"language_model.model.", "language_model.model."},
                                           {"language_model.lm_head.", "language_model.lm_head."},
                                           {"language_model.", "language_model.model."},
                                           {"lm_head.", "language_model.lm_head."},
                                           {"layers.", "language_model.model.layers."},
                                           {"embed_tokens.", "language_model.model.embed_tokens."},
                                           {"norm.", "language_model.model.norm."}}};

/// Names in the running model, and in files.
constexpr std::array<Prefix, 6> kVitParts{{{".attention.q_proj.", ".attention.attention.query."},
                                           {".attention.k_proj.", ".attention.attention.key."},
                                           {".attention.v_proj.", ".attention.attention.value."},
                                           {".attention.o_proj.", ".attention.output.dense."},
                                           {".mlp.fc1.", ".intermediate.dense."},
                                           {".mlp.fc2.", ".output.dense."}}};

/// `name` with `root` replaced at its beginning and `part` behind its number; none: it lacks one.
std::optional<std::string> renamed(const std::string& name, const Prefix& root,
                                   const Prefix& part) {
  const size_t place = name.find(part.from);
  if (!name.starts_with(root.from) || place == std::string::npos) return std::nullopt;
  const size_t begin = std::string(root.from).size(), end = place + std::string(part.from).size();
  return root.to + name.substr(begin, place - begin) + part.to + name.substr(end);
}

/// The running model's outermost "model.", which files do not have.
std::string without_outer_model(const std::string& name) {
  constexpr const char* kOuter = "model.";
  return name.starts_with(kOuter) ? name.substr(std::string(kOuter).size()) : name;
}

std::string canonical_llava_name(const std::string& name) {
  std::string inner = without_outer_model(name);
  for (const Prefix& prefix : kPrefixes)
    if (inner.starts_with(prefix.from))
      return prefix.to + inner.substr(std::string(prefix.from).size());
  constexpr const char* kTower = "vision_tower.";
  if (inner.starts_with(kTower))
    return kTower + canonical_vit_name(inner.substr(std::string(kTower).size()));
  for (const char* known :
       {"multi_modal_projector.", "audio_tower.", "audio_projector.", "image_newline"})
    if (inner.starts_with(known)) return inner;
  return name;
}

/// The running model has both parts in one "model.".
std::string canonical_qwen_vl_name(const std::string& name) {
  for (const auto& [from, to] :
       {Prefix{"model.visual.", "visual."}, Prefix{"model.language_model.", "model."}})
    if (name.starts_with(from)) return to + name.substr(std::string(from).size());
  return name;
}

/// Names of Kimi-K2.5 as published, and in transformers' running model; names in blocks of the
/// encoder differ in a part, too.
constexpr Prefix kKimiBlocks{"vision_tower.encoder.blocks.", "model.vision_tower.layers."};
constexpr std::array<Prefix, 5> kKimiParts{{{".norm0.", ".norm1."},
                                            {".norm1.", ".norm2."},
                                            {".mlp.fc0.", ".mlp.fc1."},
                                            {".mlp.fc1.", ".mlp.fc2."},
                                            {".wo.", ".attn.proj."}}};
constexpr std::array<Prefix, 9> kKimiRoots{
    {{"language_model.model.", "model.language_model."},
     {"language_model.lm_head.", "lm_head."},
     kKimiBlocks,
     {"vision_tower.patch_embed.pos_emb.weight",
      "model.vision_tower.patch_embed.pos_emb.position_embeddings"},
     {"vision_tower.patch_embed.", "model.vision_tower.patch_embed."},
     {"vision_tower.encoder.", "model.vision_tower."},
     {"mm_projector.proj.0.", "model.mm_projector.in_proj."},
     {"mm_projector.proj.2.", "model.mm_projector.out_proj."},
     {"mm_projector.", "model.mm_projector."}}};
/// Names as published, and in the files that transformers 5 saves.
constexpr std::array<Prefix, 3> kKimiSaved{
    {{"language_model.model.layers.", "language_model.model.blocks."},
     {"vision_tower.patch_embed.proj.", "vision_tower.encoder.patch_embed.proj."},
     {"mm_projector.pre_norm.", "model.mm_projector.pre_norm."}}};

/// The published name of a parameter, or the running model's.
std::string kimi_name(const std::string& name, bool is_published) {
  const auto way = [&](const Prefix& pair) {
    return is_published ? Prefix{pair.to, pair.from} : pair;
  };
  for (const Prefix& part : kKimiParts)
    if (auto found = renamed(name + ".", way(kKimiBlocks), way(part))) {
      found->pop_back();
      return *found;
    }
  for (const Prefix& root : kKimiRoots)
    if (const auto [from, to] = way(root); name.starts_with(from))
      return to + name.substr(std::string(from).size());
  return name;
}

std::string canonical_kimi_name(const std::string& name) {
  for (const auto& [published, saved] : kKimiSaved)
    if (name.starts_with(saved)) return published + name.substr(std::string(saved).size());
  return kimi_name(name, true);
}

/// The language model of a composite's files.
std::string canonical_qwen3_5_text_name(const std::string& name) {
  const std::string root = "model.language_model.";
  return name.starts_with(root) ? "model." + name.substr(root.size()) : name;
}

/// Transformers' running model calls a mixture of experts "mlp".
constexpr const char *kMixtral = "mixtral", *kMixtralFiles = ".block_sparse_moe.",
                     *kMixtralRuns = ".mlp.";

std::string with_part(std::string name, const std::string& from, const std::string& to) {
  const size_t place = name.find(from);
  return place == std::string::npos ? name : name.replace(place, from.size(), to);
}

/// Returns whether `name` belongs to a composite model whose language model is a Mixtral.
bool is_of_mixtral(const ModelSpec& model, const std::string& name) {
  if (!name.starts_with("language_model.") && !name.starts_with(kDecoder + ".")) return false;
  const auto block = std::ranges::find_if(
      model.units, [](const UnitSpec& unit) { return unit.has("router.weight"); });
  if (block == model.units.end()) return false;
  const int router = model.params_of(*block, "router.weight").front();
  return model.params[router].name.find(kMixtralFiles) != std::string::npos;
}

/// The first files, and those of the model without its head, leave "transformer." out.
std::string canonical_gpt2_name(const std::string& name) {
  for (const char* bare : {"h.", "wte.", "wpe.", "ln_f."})
    if (name.starts_with(bare)) return "transformer." + name;
  return name;
}

bool has_llava_names(const std::string& family) {
  constexpr std::array kFamilies{"gemma3",          "internvl", "llava",       "llava_next",
                                 "llava_onevision", "mistral3", "qwen2_audio", "voxtral"};
  return std::ranges::find(kFamilies, family) != kFamilies.end();
}

bool has_qwen_vl_names(const std::string& family) {
  return family == "qwen2_vl" || family == "qwen2_5_vl";
}

/// The first prefix that fits; an empty one always does.
template <size_t kCount>
std::string with_prefix(const std::string& name, const std::array<Prefix, kCount>& prefixes) {
  for (const auto& [from, to] : prefixes)
    if (name.starts_with(from)) return to + name.substr(std::string(from).size());
  return name;
}

}  // namespace

std::string canonical_parameter_name(const std::string& family, const std::string& name) {
  if (has_llava_names(family)) return canonical_llava_name(name);
  if (family == "gpt2") return canonical_gpt2_name(name);
  if (family == kKimi) return canonical_kimi_name(name);
  if (family == kMixtral) return with_part(name, kMixtralRuns, kMixtralFiles);
  if (family == "qwen3_5_text" || family == "qwen3_5_moe_text")
    return canonical_qwen3_5_text_name(name);
  return has_qwen_vl_names(family) ? canonical_qwen_vl_name(name) : name;
}

std::string running_parameter_name(const std::string& family, const std::string& name) {
  constexpr std::array<Prefix, 3> kLlava{{{"language_model.model.", "model.language_model."},
                                          {"language_model.lm_head.", "lm_head."},
                                          {"", "model."}}};
  constexpr std::array<Prefix, 2> kQwen{
      {{"visual.", "model.visual."}, {"model.", "model.language_model."}}};
  if (has_llava_names(family)) return with_prefix(name, kLlava);
  if (family == kMixtral) return with_part(name, kMixtralFiles, kMixtralRuns);
  if (family == kKimi) return kimi_name(name, false);
  return has_qwen_vl_names(family) ? with_prefix(name, kQwen) : name;
}

std::string canonical_parameter_name(const ModelSpec& model, const std::string& name) {
  const std::string found = canonical_parameter_name(model.family, name);
  return is_of_mixtral(model, found) ? with_part(found, kMixtralRuns, kMixtralFiles) : found;
}

std::string running_parameter_name(const ModelSpec& model, const std::string& name) {
  const bool is_mixtral = is_of_mixtral(model, name);
  return running_parameter_name(model.family,
                                is_mixtral ? with_part(name, kMixtralFiles, kMixtralRuns) : name);
}

std::string spelling_of(const std::string& family, const std::string& name) {
  if (family == kMixtral && name.find(kMixtralRuns) != std::string::npos) return kRunningNames;
  if (family != kKimi) return "";
  if (name.starts_with(kKimiRoots.front().to)) return kRunningNames;
  return name.starts_with(kKimiSaved.front().to) ? kSavedNames : "";
}

std::string name_in_files(const std::string& family, const std::string& spelling,
                          const std::string& name) {
  if (spelling == kRunningNames) return running_parameter_name(family, name);
  return spelling == kSavedNames ? with_prefix(name, kKimiSaved) : name;
}

std::string canonical_vit_name(const std::string& name) {
  for (const Prefix& part : kVitParts)
    if (auto found = renamed(name + ".", {"layers.", "encoder.layer."}, part)) {
      found->pop_back();
      return *found;
    }
  return name;
}

std::string running_vit_name(const std::string& name) {
  for (const auto& [running, saved] : kVitParts)
    if (auto found = renamed(name + ".", {"encoder.layer.", "layers."}, {saved, running})) {
      found->pop_back();
      return *found;
    }
  return name;
}

std::string tower_parameter_name(const std::string& name, bool is_audio) {
  for (const std::string outer :
       {"vision_model.", "model.encoder.", "vit.", "dinov2.", "dinov2_with_registers.", "encoder."})
    if (name.starts_with(outer) && (outer != "encoder." || is_audio))
      return name.substr(outer.size());
  return name;
}

bool is_computed_buffer(const std::string& name) {
  constexpr std::array kSuffixes{"inv_freq",    ".attn.bias",  ".embed_scale", "position_ids",
                                 ".cos_cached", ".sin_cached", "masked_bias"};
  return std::any_of(kSuffixes.begin(), kSuffixes.end(),
                     [&](const char* suffix) { return name.ends_with(suffix); });
}

int sign_of_unbounded(const std::string& name) {
  if (name.ends_with(".input_min") || name.ends_with(".output_min")) return -1;
  return name.ends_with(".input_max") || name.ends_with(".output_max") ? 1 : 0;
}

}  // namespace zea
