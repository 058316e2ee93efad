// SPDX-License-Identifier: Apache-2.0
#include "zea/plan/parameter_names.hpp"

#include <array>

namespace zea {
namespace {

struct Prefix {
  const char* from;
  const char* to;
};

/// The first prefix that fits is replaced; longer ones stand before those that they contain.
constexpr std::array<Prefix, 8> kPrefixes{{{"vision_tower.vision_model.", "vision_tower."},
                                           {"language_model.model.", "language_model.model."},
                                           {"language_model.lm_head.", "language_model.lm_head."},
                                           {"language_model.", "language_model.model."},
                                           {"lm_head.", "language_model.lm_head."},
                                           {"layers.", "language_model.model.layers."},
                                           {"embed_tokens.", "language_model.model.embed_tokens."},
                                           {"norm.", "language_model.model.norm."}}};

/// The running model's outermost "model.", which files do not have.
std::string without_outer_model(const std::string& name) {
  constexpr const char* kOuter = "model.";
  return name.starts_with(kOuter) ? name.substr(std::string(kOuter).size()) : name;
}

}  // namespace

std::string canonical_parameter_name(const std::string& name) {
  const std::string inner = without_outer_model(name);
  for (const Prefix& prefix : kPrefixes)
    if (inner.starts_with(prefix.from))
      return prefix.to + inner.substr(std::string(prefix.from).size());
  for (const char* known : {"vision_tower.", "multi_modal_projector."})
    if (inner.starts_with(known)) return inner;
  return name;
}

bool is_computed_buffer(const std::string& name) {
  return name.ends_with(".position_ids") || name.ends_with(".rotary_emb.inv_freq");
}

}  // namespace zea
