// SPDX-License-Identifier: Apache-2.0
#include "app/auto_layout.hpp"

#include <unistd.h>

#include <algorithm>
#include <type_traits>
#include <utility>

#include "core/error.hpp"
#include "core/text.hpp"
#include "deck/key_table.hpp"

namespace zea {
namespace {

constexpr size_t kCompared = 3;  ///< fastest layouts, of which the first is taken
constexpr const char* kRefused = "mesh.layout = \"auto\": ";

/// A rank on some core of a processor: rough figures, which order layouts by the work and the
/// messages that they need.
Hardware processor_core(int ranks_per_node) {
  const double memory =
      static_cast<double>(sysconf(_SC_PHYS_PAGES)) * static_cast<double>(sysconf(_SC_PAGESIZE));
  Hardware hardware;
  hardware.identity.name = "some processor core";
  hardware.identity.reference = "assumed";
  hardware.node = {.ranks = ranks_per_node,
                   .memory_gib = memory / (1 << 30) / std::max(1, ranks_per_node)};
  DeviceRates& device = hardware.device;
  device.bf16_tflops = 0.2;
  device.fp32_tflops = 0.1;
  device.fp64_tflops = 0.05;
  device.gemm_dims = {8, 32, 128, 512};
  device.gemm_efficiency = {0.15, 0.4, 0.7, 0.8};
  device.attention_efficiency = 0.35;
  device.memory_gb_per_s = 15;
  device.launch_us = 4;
  device.launches_ahead = false;
  device.overlaps = false;
  hardware.inside = {.latency_us = 5, .hop_us = 1, .gb_per_s = 5};
  hardware.between = {.latency_us = 30, .hop_us = 20, .gb_per_s = 0.6};
  return hardware;
}

Hardware hardware_of(const Options& options, const RunRanks& on) {
  if (on.hardware) return *on.hardware;
  if (!options.mesh.hardware.empty()) return read_hardware(options.mesh.hardware);
  if (options.run.device == DeviceKind::Cpu) return processor_core(on.per_node);
  throw DeckError(std::string(kRefused) +
                  "run.device = \"cuda\" needs the rates of the GPUs and their links; name a "
                  "hardware file in mesh.hardware, as in inputs/hardware");
}

/// The keys that the search chooses, where the deck does not give them.
std::vector<std::string> open_keys(const Options& options, const ModelSpec& model) {
  std::vector<std::string> keys{"model.activation_checkpointing", "mesh.placement", "mesh.schedule",
                                "mesh.dp_replicate", "mesh.dp_shard"};
  for (const std::string& module : model.modules())
    for (const char* key : {"strategy", "reshard_after_forward", "pp", "virtual_stages",
                            "encoder_dp", "cp", "cp_mode", "tp"})
      keys.push_back("mesh." + module + "." + key);
  if (model.has_experts())
    for (const char* key : {"ep", "etp"}) keys.push_back("mesh." + kDecoder + "." + key);
  if (options.model.activation_checkpointing.is_auto())  // which the limit of memory belongs to
    keys.emplace_back("mesh.rank_memory_mib");
  std::erase_if(keys, [&](const std::string& key) { return options.given.contains(key); });
  return keys;
}

void copy_keys(Options& to, Options from, const std::vector<std::string>& paths) {
  for (const std::string& section : list_sections(to)) add_module_section(from, section, {});
  for (const std::string& path : paths) add_module_section(to, path.substr(0, path.rfind('.')), {});
  for (const std::string& section : list_sections(to)) add_module_section(from, section, {});
  const std::vector<Key> sources = list_keys(from);
  for (const Key& key : list_keys(to)) {
    if (std::ranges::count(paths, key.path()) == 0) continue;
    const auto source = std::ranges::find(sources, key.path(), &Key::path);
    std::visit(
        [&](auto* member) {
          *member = *std::get<std::remove_reference_t<decltype(member)>>(source->member);
        },
        key.member);
  }
}

/// Takes the layout of the checkpoint's deck, where that was found for as many ranks.
bool keep_layout(Start& start, int ranks) {
  Options& options = start.options;
  if (options.mesh.searched_ranks == ranks) return true;
  if (!start.resumed || options.mesh.searched_ranks > 0) return false;
  const Options& resumed = *start.resumed;
  if (resumed.mesh.layout != LayoutSource::Auto || resumed.mesh.searched_ranks != ranks)
    return false;
  std::vector<std::string> keys = resumed.mesh.searched_keys;
  std::erase_if(keys, [&](const std::string& key) { return options.given.contains(key); });
  copy_keys(options, resumed, keys);
  options.mesh.searched_ranks = ranks;
  options.mesh.searched_keys = keys;
  return true;
}

/// Forgets a layout that was found for another number of ranks.
std::string forget_layout(Start& start, int ranks) {
  MeshOptions& mesh = start.options.mesh;
  if (mesh.searched_ranks == 0) {
    const bool resumes = start.resumed && start.resumed->mesh.layout == LayoutSource::Auto;
    return resumes ? formatted("the run that is resumed had a layout for %ld ranks; ",
                               static_cast<long>(start.resumed->mesh.searched_ranks))
                   : "";
  }
  const std::string note = formatted("the layout in the deck is for %ld ranks, not %d; ",
                                     static_cast<long>(mesh.searched_ranks), ranks);
  const std::vector<std::string> keys = std::exchange(mesh.searched_keys, {});
  mesh.searched_ranks = 0;
  copy_keys(start.options, Options{}, keys);
  for (const std::string& key : keys) start.options.given.erase(key);
  return note;
}

}  // namespace

std::string choose_layout(Start& start, const RunRanks& on, const MakeSamples& samples) {
  if (start.options.mesh.layout != LayoutSource::Auto) return "";
  const std::string ranks = std::to_string(on.ranks) + " ranks";
  if (keep_layout(start, on.ranks))
    return "layout (mesh.layout = \"auto\"): the one that was found for " + ranks + " before\n";
  const std::string note = forget_layout(start, on.ranks);
  Options& options = start.options;
  SearchRequest request{.options = options,
                        .config_json = start.config_json,
                        .profile = start.profile,
                        .ranks = on.ranks,
                        .ranks_per_node = std::max(1, on.per_node),
                        .hardware = hardware_of(options, on)};
  request.memory_bytes =
      static_cast<int64_t>(request.hardware.node.memory_gib * (int64_t{1} << 30));
  request.options.mesh.layout = LayoutSource::Deck;
  const SearchResult found = search_layouts(request, samples, kCompared);
  if (found.best.empty())
    throw PlanError(kRefused + ("no layout of " + ranks + " fits into memory: ") +
                    (found.refused.empty() ? "" : found.refused.front().reason) +
                    "; take more ranks, fewer tokens (data.row_tokens), or raise "
                    "mesh.rank_memory_mib if that limits it");
  const std::vector<std::string> keys =
      open_keys(options, model_of(request.options, request.config_json));
  copy_keys(options, found.best.front().options, keys);
  options.mesh.searched_ranks = on.ranks;
  options.mesh.searched_keys = keys;
  return "layout (mesh.layout = \"auto\"): " + note + "searched\n" +
         describe_search(request, found) + "  the first is taken\n";
}

}  // namespace zea
