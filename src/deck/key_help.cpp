// SPDX-License-Identifier: Apache-2.0
// The help on the keys of a deck: on all, on a section, on one.
#include <algorithm>
#include <string_view>

#include "deck/deck.hpp"
#include "deck/hardware.hpp"
#include "deck/key_table.hpp"

namespace zea {
namespace {

const char* type_name(const KeyMember& member) {
  constexpr const char* kNames[] = {
      "string",      "string",  "true or false",   "integer",         "number",
      "setting",     "setting", "list of numbers", "list of strings", "list of lists of strings",
      "path or list"};
  static_assert(std::size(kNames) == std::variant_size_v<KeyMember>);
  return kNames[member.index()];
}

/// Example values, as TOML, of keys whose type and default suggest none; keys of modules are
/// without their section.
constexpr std::pair<std::string_view, const char*> kExamples[] = {
    {"run.directory", R"("runs/first")"},
    {"run.peak_tflops", "989.0"},
    {"model.weights", R"("weights.h5")"},
    {"model.config", R"("config.json")"},
    {"model.load_modules", R"(["llm"])"},
    {"model.llm.weights", R"("llama-directory")"},
    {"targets", R"(["q_proj", "v_proj"])"},
    {"alpha", "32.0"},
    {"rank_pattern", R"(["mlp.* = 16"])"},
    {"alpha_pattern", R"(["mlp.* = 32"])"},
    {"model.llm.dropout", R"("auto")"},
    {"router_aux_loss_coef", "0.01"},
    {"router_z_loss_coef", "0.001"},
    {"mtp_loss_coef", "0.1"},
    {"dropout", "0.05"},
    {"model.vision.lora.weights", R"("adapter-directory")"},
    {"model.audio.lora.weights", R"("adapter-directory")"},
    {"model.llm.lora.weights", R"("adapter-directory")"},
    {"weights", R"("clip-directory")"},
    {"placeholder", R"("<image>")"},
    {"mesh.hardware", R"("inputs/hardware/h100_nvlink_infiniband.toml")"},
    {"mesh.searched_keys", R"(["mesh.llm.tp", "mesh.llm.pp"])"},
    {"mesh.profile", R"("costs.json")"},
    {"mesh.memory_mib", "40000.0"},
    {"mesh.rank_memory_mib", "80000.0"},
    {"optim.router_bias_update_rate", "0.001"},
    {"optim.frozen", R"(["vision = 500"])"},
    {"optim.spike_deviations", "6.0"},
    {"eval.temperature", "0.7"},
    {"eval.stop_tokens", "[2]"},
    {"eval.stop_texts", R"(["\n"])"},
    {"mesh.order", R"(["tp", "cp", "encoder_dp", "module", "pp", "dp"])"},
    {"stages", R"([["llm.embed..llm.layers.1"], ["llm.layers.2..llm.head"]])"},
    {"cp_ulysses_ranks", "2"},
    {"data.train", R"("train.h5")"},
    {"data.eval", R"("eval.h5")"},
    {"data.cache_features", R"("features")"},
    {"data.image_mean", "[0.5, 0.5, 0.5]"},
    {"data.image_std", "[0.5, 0.5, 0.5]"},
    {"data.resized_min_pixels", "3136"},
    {"data.resized_max_pixels", "1003520"},
    {"data.video_min_pixels", "100352"},
    {"data.video_max_pixels", "602112"},
    {"data.max_frames", "64"},
    {"data.min_tiles", "2"},
    {"data.max_tiles", "6"},
    {"optim.min_lr", "1e-5"},
    {"optim.warmup_steps", "100"},
    {"optim.weight_decay", "0.1"},
    {"optim.lr_factors", R"(["vision = 0.1"])"},
    {"optim.weight_decays", R"(["llm = 0.1", "*.bias = 0"])"},
    {"checkpoint.every", "500"},
    {"checkpoint.rate_limit_mib", "200.0"},
    {"eval.every", "500"},
    {"eval.samples", "1000"},
    {"eval.generate_tokens", "32"},
    {"log.trace_step", "10"},
};

/// Returns a value other than the default, except for lists of numbers.
std::string example_value(const Key& key) {
  const KeyInfo& info = key.info;
  std::string standard = toml_text(key.member);
  for (const auto& [name, example] : kExamples)
    if (key.path() == name || info.name == name) return example;
  for (const std::string& value : info.allowed)
    if (toml_text(value) != standard) return toml_text(value);
  if (std::holds_alternative<AutoOption*>(key.member)) return toml_text(false);
  if (const auto* is_on = std::get_if<bool*>(&key.member)) return toml_text(!**is_on);
  if (const auto* number = std::get_if<double*>(&key.member)) return toml_text(**number / 2);
  if (const auto* count = std::get_if<int64_t*>(&key.member)) {
    const double twice = 2 * static_cast<double>(**count);
    return toml_text(static_cast<int64_t>(std::clamp(twice, 1.0, info.range.max)));
  }
  return standard;
}

/// "integer: 1 to 64".
std::string value_words(const Key& key) {
  const std::string allowed = allowed_values(key);
  return type_name(key.member) + (allowed.empty() ? "" : ": " + allowed);
}

std::string reference_of(const Key& key) {
  return "  " + std::string(key.info.name) + " = " + toml_text(key.member) + "   (" +
         value_words(key) + ")\n      " + key.info.help + "\n";
}

std::string explain(const Key& key) {
  const std::string example = example_value(key), line = key.info.name + (" = " + example);
  return key.path() + "\n  " + key.info.help + "\n\n  " + value_words(key) +
         "\n  default: " + toml_text(key.member) + "\n\nIn a deck:\n\n  [" + key.section + "]\n  " +
         line + "\n";
}

}  // namespace

std::string deck_reference() {
  Options defaults;
  std::string text, section;
  for (const Key& key : list_keys(defaults)) {
    if (key.section != section) text += (text.empty() ? "[" : "\n[") + key.section + "]\n";
    section = key.section;
    text += reference_of(key);
  }
  return text;
}

std::string key_help(const std::string& asked) {
  if (asked == "hardware") return hardware_reference();
  Options defaults;
  const std::string path = current_path(asked);
  const std::vector<Key> keys = list_keys(defaults);
  std::string of_section, below;
  for (const Key& key : keys) {
    if (key.path() == path) return explain(key);
    if (key.section == path) of_section += reference_of(key);
  }
  const std::vector<std::string> sections = list_sections(defaults);
  for (const std::string& section : sections)
    if (section.starts_with(path + ".")) below += (below.empty() ? "" : ", ") + section;
  if (of_section.empty()) {
    const std::vector<std::string> meant = nearest_paths(path, sections);
    throw DeckError(path + " is neither a key nor a section; " +
                    (meant.empty() ? key_advice(path, keys)
                                   : "did you mean the section " + join_words(meant) + "?"));
  }
  return "[" + path + "]\n" + of_section +
         (below.empty() ? "" : "\nSections below it: " + below + "\n");
}

std::vector<KeyDescription> describe_keys() {
  Options defaults;
  std::vector<KeyDescription> described;
  for (const Key& key : list_keys(defaults))
    described.push_back({key.path(), toml_text(key.member), value_words(key), key.info.help});
  return described;
}

}  // namespace zea
